// experiments NAME [--json] [--quick] [--data DIR]: runs one experiment and prints its figures.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/log.h"
#include "experiments/experiment.h"

namespace millrace::experiments {
namespace {

struct Options {
  std::string name;
  std::string data;
  bool json = false, quick = false, list = false, all_quick = false;
};

const Experiment* Find(const std::string& name) {
  for (const Experiment& e : Experiments()) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

std::string Cell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void PrintJson(const std::vector<Figure>& figures) {
  Json all = Json::array();
  for (const Figure& f : figures) {
    Json line = {{"name", f.name}, {"paper", f.paper},     {"ours", f.ours},
                 {"unit", f.unit}, {"verdict", f.verdict}, {"held", f.held}};
    line.update(f.more);
    all.push_back(std::move(line));
  }
  fmt::print("{}\n", all.dump(2));
}

void PrintTable(const Experiment& experiment, const std::vector<Figure>& figures) {
  fmt::print("{}\n\n| figure | paper | ours | unit | verdict |\n|---|---|---|---|---|\n",
             experiment.title);
  for (const Figure& f : figures) {
    fmt::print("| {} | {} | {} | {} | {} |\n", f.name, Cell(f.paper), Cell(f.ours), f.unit,
               f.verdict);
  }
}

int List() {
  for (const Experiment& e : Experiments()) fmt::print("{:<24} {}\n", e.name, e.title);
  return 0;
}

// Runs every quick experiment at small size, as the test suite does. Fails if a bar is missed.
int RunAllQuick(const Options& options) {
  const bool data = std::filesystem::is_directory(options.data);
  int missed = 0;
  for (const Experiment& e : Experiments()) {
    if (!e.quick) continue;
    if (e.needs_data && !data) {
      fmt::print("{:<24} not run: it needs the published data, and {} is not a folder\n", e.name,
                 options.data);
      continue;
    }
    const auto figures = e.run({.data = options.data, .quick = true});
    if (!figures.ok()) {
      fmt::print("{:<24} failed: {}\n", e.name, figures.status().message());
      ++missed;
      continue;
    }
    fmt::print("{:<24} {} figures\n", e.name, figures->size());
    for (const Figure& f : *figures) {
      if (f.held) continue;
      fmt::print("    {}: paper {}, ours {} {}: {}\n", f.name, Cell(f.paper), Cell(f.ours), f.unit,
                 f.verdict);
      ++missed;
    }
  }
  return missed == 0 ? 0 : 1;
}

int Run(const Options& options) {
  if (options.all_quick) return RunAllQuick(options);
  if (options.list || options.name.empty()) return List();
  const Experiment* experiment = Find(options.name);
  if (experiment == nullptr) {
    fmt::print(stderr, "experiments: no experiment \"{}\"; --list shows all\n", options.name);
    return 2;
  }
  if (experiment->needs_data && !std::filesystem::is_directory(options.data)) {
    fmt::print(
        stderr,
        "experiments: {} needs the published data, but {} is not a folder; give --data DIR\n",
        options.name, options.data);
    return 2;
  }
  const auto figures = experiment->run(
      {.data = options.data, .progress = isatty(STDERR_FILENO) != 0, .quick = options.quick});
  if (!figures.ok()) {
    fmt::print(stderr, "experiments: {}: {}\n", options.name, figures.status().message());
    return 1;
  }
  if (options.json) {
    PrintJson(*figures);
  } else {
    PrintTable(*experiment, *figures);
  }
  return 0;
}

}  // namespace
}  // namespace millrace::experiments

int main(int argc, char** argv) {
  millrace::experiments::Options options;
  CLI::App app{"Runs one published experiment and prints the paper's figures beside ours"};
  app.add_option("name", options.name, "The experiment; without it, prints the list");
  app.add_option("--data", options.data, "Folder of traces, profiles and placements")->required();
  app.add_flag("--json", options.json, "Keys name, paper, ours, unit, verdict per figure");
  app.add_flag("--quick", options.quick, "A smaller run, as the test suite does");
  app.add_flag("--all-quick", options.all_quick, "Every quick experiment; fails on a missed bar");
  app.add_flag("--list", options.list, "Names and titles");
  CLI11_PARSE(app, argc, argv);
  MR_CHECK(millrace::InitLog("warning").ok());
  return millrace::experiments::Run(options);
}
