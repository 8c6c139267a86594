#include "apps/cli/parse.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/config_file.h"
#include "apps/cli/tokenize.h"
#include "base/file.h"
#include "base/log.h"
#include "base/suggest.h"

namespace millrace::apps {
namespace {

struct Source {
  std::string name;  // "--port", "MILLRACE_PORT", "port (a.yaml, line 3)"
  std::vector<std::string> values;
};

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const auto guess = Suggest(word, known);
  return guess ? fmt::format("; did you mean {}?", *guess) : "";
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> ChildNames(const Command& command) {
  std::vector<std::string> names;
  for (const auto& child : command.children) {
    if (!child->hidden) names.push_back(child->name);
  }
  return names;
}

std::vector<std::string> LongNames(const Command& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options) {
    if (!option.positional) names.push_back("--" + option.name);
    if (option.negatable) names.push_back("--no-" + option.name);
    for (const std::string& alias : option.aliases) names.push_back(alias);
  }
  return names;
}

bool WantsHelp(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

bool TakesArgument(const Command& command) {
  return std::any_of(command.options.begin(), command.options.end(),
                     [](const Option& option) { return option.positional; });
}

Status UnknownWord(const Command& command, const std::string& word) {
  if (!word.starts_with("-")) {
    return InvalidArgument(fmt::format(
        "unexpected argument '{}'; {}", Printable(word),
        TakesArgument(command) ? "one is enough, and options begin with --"
                               : "this command takes options only, which begin with --"));
  }
  const std::string name = word.substr(0, word.find('='));
  return InvalidArgument(
      fmt::format("unknown option {}{}", Printable(name), DidYouMean(name, LongNames(command))));
}

Status CheckRefused(const Command& command, const Tokens& tokens) {
  for (const Option& option : command.options) {
    if (option.refused.empty() || !tokens.given.contains(option.name)) continue;
    return InvalidArgument(
        fmt::format("{} is not supported: {}", option.Display(), option.refused));
  }
  return OkStatus();
}

Status CheckLeftOver(const Command& command, const Tokens& tokens) {
  for (const std::string& word : tokens.left) {
    if (word.starts_with("-")) return UnknownWord(command, word);
  }
  if (!tokens.left.empty()) return UnknownWord(command, tokens.left.front());
  return OkStatus();
}

void CollectNames(const Command& command, std::vector<std::string>& names) {
  for (const Option& option : command.options) {
    if (option.command_line_only) continue;
    names.push_back(option.name);
    if (option.negatable) names.push_back("no-" + option.name);
  }
  for (const auto& child : command.children) CollectNames(*child, names);
}

// One file may serve several commands, so a key must be known to at least one of them.
Status CheckKeys(const Command& root, const ConfigEntries& entries) {
  std::vector<std::string> known;
  CollectNames(root, known);
  for (const auto& [key, entry] : entries) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return InvalidArgument(fmt::format("line {}: unknown option '{}'{}", entry.line, Printable(key),
                                       DidYouMean(key, known)));
  }
  return OkStatus();
}

Result<ConfigEntries> ReadConfig(const Command& root, const std::string& path) {
  auto text = ReadFile(path, kConfigBytesMax);
  if (!text.ok()) return text.status().WithContext("config file");
  auto entries = ParseConfig(*text);
  const std::string context = fmt::format("config file {}", Printable(path));
  if (!entries.ok()) return entries.status().WithContext(context);
  MR_RETURN_IF_ERROR(CheckKeys(root, *entries).WithContext(context));
  return entries;
}

// "true" for a negated name if the option means the opposite.
std::vector<std::string> Negated(std::vector<std::string> values) {
  for (std::string& value : values) value = value == "false" || value == "0" ? "true" : "false";
  return values;
}

class Resolver {
 public:
  Resolver(const Tokens& tokens, const Environment& environment)
      : tokens_(tokens), environment_(environment) {}

  Status LoadConfig(const Command& root, const Option& option) {
    const auto source = Find(option);
    if (!source) return OkStatus();
    path_ = source->values.back();
    MR_ASSIGN_OR_RETURN(config_, ReadConfig(root, path_));
    return OkStatus();
  }

  std::optional<Source> Find(const Option& option) const {
    if (const auto at = tokens_.given.find(option.name); at != tokens_.given.end()) {
      return Source{option.Display(), at->second};
    }
    if (option.command_line_only) return std::nullopt;
    if (auto source = FromEnvironment(option)) return source;
    if (auto source = FromConfig(option.name)) return source;
    if (!option.negatable) return std::nullopt;
    auto source = FromConfig("no-" + option.name);
    if (source) source->values = Negated(std::move(source->values));
    return source;
  }

 private:
  std::optional<Source> FromEnvironment(const Option& option) const {
    const std::string name = option.EnvironmentName();
    if (const auto text = environment_(name); text && !text->empty()) {
      if (option.arity == Arity::kMany) return Source{name, Split(*text, ',')};
      return Source{name, {*text}};
    }
    if (!option.negatable) return std::nullopt;
    const std::string no_name = "MILLRACE_NO_" + name.substr(sizeof("MILLRACE_") - 1);
    if (const auto text = environment_(no_name); text && !text->empty()) {
      return Source{no_name, Negated({*text})};
    }
    return std::nullopt;
  }

  std::optional<Source> FromConfig(const std::string& key) const {
    const auto at = config_.find(key);
    if (at == config_.end() || at->second.values.empty()) return std::nullopt;
    return Source{fmt::format("{} ({}, line {})", key, Printable(path_), at->second.line),
                  at->second.values};
  }

  const Tokens& tokens_;
  const Environment& environment_;
  ConfigEntries config_;
  std::string path_;
};

Status MissingOption(const Command& command, const Option& option) {
  std::string message = fmt::format("{} is missing", option.Display());
  if (!command.examples.empty()) {
    message += fmt::format("; for example: {}", command.examples.front().command);
  }
  return InvalidArgument(std::move(message));
}

Status StoreOptions(const Command& root, const Command& command, const Tokens& tokens,
                    const Environment& environment) {
  Resolver resolver(tokens, environment);
  for (const Option& option : command.options) {
    if (option.name == "config") MR_RETURN_IF_ERROR(resolver.LoadConfig(root, option));
  }
  for (const Option& option : command.options) {
    const auto source = resolver.Find(option);
    if (!source) {
      if (option.required) return MissingOption(command, option);
      continue;
    }
    if (option.arity == Arity::kOne && source->values.size() > 1 &&
        !tokens.given.contains(option.name)) {
      return InvalidArgument(
          fmt::format("{} takes one value, got {}", source->name, source->values.size()));
    }
    if (const Status status = option.set(source->values); !status.ok()) {
      return InvalidArgument(source->name + " " + status.message());
    }
  }
  if (command.on_given) {
    std::set<std::string> names;
    for (const auto& [name, values] : tokens.given) names.insert(name);
    command.on_given(names);
  }
  return command.validate ? command.validate() : OkStatus();
}

Status UnknownCommand(const Command& command, const std::string& word) {
  if (word.starts_with("-")) {
    return InvalidArgument(fmt::format(
        "unknown option {} here; options come after the command, as in: {}", Printable(word),
        command.examples.empty() ? "millrace serve MODEL --port 8000"
                                 : command.examples.front().command));
  }
  if (const auto removed = command.removed.find(word); removed != command.removed.end()) {
    return InvalidArgument(fmt::format("'{}' was removed; {}", word, removed->second));
  }
  const auto names = ChildNames(command);
  return InvalidArgument(
      fmt::format("unknown command '{}'{}", Printable(word),
                  Suggest(word, names) ? DidYouMean(word, names) : "; see 'millrace --help'"));
}

}  // namespace

Status RefuseGiven(const std::set<std::string>& given, std::initializer_list<const char*> names,
                   std::string_view why) {
  for (const char* name : names) {
    if (given.contains(name)) return InvalidArgument(fmt::format("--{} {}", name, why));
  }
  return OkStatus();
}

Status RefuseOthers(const std::set<std::string>& given, std::initializer_list<const char*> names,
                    std::string_view why) {
  for (const std::string& name : given) {
    if (std::ranges::find(names, name) != names.end()) continue;
    return InvalidArgument(fmt::format("--{} {}", name, why));
  }
  return OkStatus();
}

void AddGeneralOptions(Command& command) {
  Option config = CustomOption("config", "FILE", "", [](const std::string&) { return OkStatus(); });
  config.kind = ValueKind::kFile;
  command.Add("General", std::move(config),
              "Read options from a YAML file: a map from option names to values");
  Option level = TextOption("log-level", "LEVEL", &command.log_level);
  level.choices = {"trace", "debug", "info", "warning", "error", "off"};
  level.set = [&command, choices = level.choices](const std::vector<std::string>& values) {
    MR_RETURN_IF_ERROR(CheckChoice(values.back(), choices));
    command.log_level = values.back();
    return OkStatus();
  };
  command.Add("General", std::move(level), "Least severe messages shown on stderr");
  command.Add("General",
              ChoiceOption<LogFormat>("log-format", &command.log_format,
                                      {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}),
              "Form of the messages on stderr: lines for people, or a JSON object per line");
  Option help;
  help.name = "help";
  help.aliases = {"-h"};
  help.arity = Arity::kFlag;
  help.command_line_only = true;
  help.set = [](const std::vector<std::string>&) { return OkStatus(); };
  command.Add("General", std::move(help), "Show this help and exit");
}

Result<Invocation> ParseCommandLine(const Command& root, const std::vector<std::string>& args,
                                    const Environment& environment) {
  Invocation invocation{&root, root.name, false};
  size_t at = 0;
  while (at < args.size()) {
    const Command* child = invocation.command->Child(args[at]);
    if (child == nullptr) break;
    invocation.command = child;
    invocation.path += " " + child->name;
    ++at;
  }
  const Command& command = *invocation.command;
  const std::vector<std::string> words(args.begin() + static_cast<ptrdiff_t>(at), args.end());
  if (!command.children.empty()) {
    if (words.empty() || WantsHelp({words.front()})) {
      invocation.help = true;
      return invocation;
    }
    if (command.IsGroup() || !words.front().starts_with("-")) {
      return UnknownCommand(command, words.front()).WithContext(invocation.path);
    }
  }
  if (WantsHelp(words)) {
    invocation.help = true;
    return invocation;
  }
  auto tokens = Tokenize(command, words);
  if (!tokens.ok()) return tokens.status().WithContext(invocation.path);
  MR_RETURN_IF_ERROR(CheckRefused(command, *tokens).WithContext(invocation.path));
  MR_RETURN_IF_ERROR(CheckLeftOver(command, *tokens).WithContext(invocation.path));
  MR_RETURN_IF_ERROR(
      StoreOptions(root, command, *tokens, environment).WithContext(invocation.path));
  return invocation;
}

}  // namespace millrace::apps
