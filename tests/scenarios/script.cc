#include "tests/scenarios/script.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace millrace {
namespace {

// The script in the file, and its rewritten form.
std::pair<std::string, std::string> Replay(const std::string& path, Scenario& scenario) {
  std::ifstream in(path);
  std::stringstream content;
  content << in.rdbuf();
  std::string now;
  for (std::string line; std::getline(content, line);) {
    if (line.starts_with("> ")) {
      now += line + "\n";
      for (const std::string& said : scenario.Run(line.substr(2))) now += said + "\n";
    } else if (line.empty() || line.starts_with("#")) {
      now += line + "\n";
    }
  }
  return {content.str(), now};
}

void SayFirstDifference(const std::string& path, const std::string& before,
                        const std::string& now) {
  std::istringstream a(before), b(now);
  std::string line_a, line_b;
  for (int number = 1;; ++number) {
    const bool more_a = static_cast<bool>(std::getline(a, line_a));
    const bool more_b = static_cast<bool>(std::getline(b, line_b));
    if (!more_a && !more_b) return;
    if (more_a == more_b && line_a == line_b) continue;
    fmt::print("{}:{}: differs\n  file: {}\n  now:  {}\n", path, number, more_a ? line_a : "(end)",
               more_b ? line_b : "(end)");
    return;
  }
}

}  // namespace

Command Command::Parse(const std::string& line) {
  Command command;
  std::istringstream in(line);
  for (std::string word; in >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      command.words.push_back(word);
    } else {
      command.values[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return command;
}

int Command::Int(const std::string& name, int otherwise) const {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : std::stoi(found->second);
}

std::string Command::Text(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? "" : found->second;
}

std::string Command::Rest(size_t i) const {
  std::string rest;
  for (; i < words.size(); ++i) rest += (rest.empty() ? "" : " ") + words[i];
  return rest;
}

int RunScripts(int argc, char** argv, const std::function<std::unique_ptr<Scenario>()>& start) {
  bool rewrite = false;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    std::string(argv[i]) == "--rewrite" ? void(rewrite = true) : paths.push_back(argv[i]);
  }
  int different = 0;
  for (const std::string& path : paths) {
    const auto [before, now] = Replay(path, *start());
    if (before == now) continue;
    ++different;
    if (rewrite) {
      std::ofstream(path) << now;
      fmt::print("{}: rewritten\n", path);
    } else {
      SayFirstDifference(path, before, now);
    }
  }
  fmt::print("{} scenarios, {} {}\n", paths.size(), different,
             rewrite ? "rewritten" : "with different decisions");
  return paths.empty() || (different > 0 && !rewrite) ? 1 : 0;
}

}  // namespace millrace
