#include "apps/cli/help.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::apps {
namespace {

constexpr int kTextColumn = 30;

std::string FormatOption(const Option& option) {
  std::string line = "  " + OptionSyntax(option);
  std::string text = Wrap(OptionText(option), kTextColumn, kHelpColumns);
  if (line.size() + 2 <= kTextColumn) {
    text.replace(0, line.size(), line);
    return text;
  }
  return line + "\n" + text;
}

std::string FormatChildren(const Command& command) {
  std::string out = "Commands:\n";
  size_t width = 0;
  for (const auto& child : command.children) width = std::max(width, child->name.size());
  for (const auto& child : command.children) {
    if (!child->hidden) out += fmt::format("  {:<{}}  {}\n", child->name, width, child->summary);
  }
  return out;
}

}  // namespace

std::string Wrap(std::string_view text, int indent, int columns) {
  std::string out;
  std::string line(static_cast<size_t>(indent), ' ');
  const size_t blank = line.size();
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (line.size() > blank && line.size() + 1 + word.size() > static_cast<size_t>(columns)) {
      out += line + "\n";
      line.resize(blank);
    }
    if (line.size() > blank && !word.empty()) line += ' ';
    line += word;
    if (end < text.size() && text[end] == '\n') {
      out += (line.size() > blank ? line : "") + "\n";
      line.resize(blank);
    }
    at = end + 1;
  }
  return out + (line.size() > blank ? line + "\n" : "");
}

std::string UsageLine(const Command& command, std::string_view path) {
  std::string usage(path);
  if (command.IsGroup()) return usage + " COMMAND";
  for (const Option& option : command.options) {
    if (option.positional) {
      usage += option.required ? " " + option.value_name : " [" + option.value_name + "]";
    } else if (option.required) {
      usage += fmt::format(" --{} {}", option.name, option.value_name);
    }
  }
  return usage + " [OPTIONS]";
}

std::string OptionSyntax(const Option& option) {
  std::string out;
  if (option.positional) {
    out = option.value_name;
    for (const std::string& alias : option.aliases) out += ", " + alias + " " + option.value_name;
    return out;
  }
  for (const std::string& alias : option.aliases) out += alias + ", ";
  out += (option.negatable ? "--[no-]" : "--") + option.name;
  if (!option.value_name.empty()) out += " " + option.value_name;
  if (option.arity == Arity::kMany) out += "...";
  return out;
}

std::string OptionText(const Option& option) {
  std::string text = option.help;
  if (!option.default_text.empty()) text += fmt::format(" [default: {}]", option.default_text);
  if (option.required && !option.positional) text += " [required]";
  return text;
}

std::vector<std::pair<std::string, std::vector<const Option*>>> OptionGroups(
    const Command& command) {
  std::vector<std::pair<std::string, std::vector<const Option*>>> groups;
  for (const Option& option : command.options) {
    if (!option.refused.empty()) continue;
    auto at = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == option.group; });
    if (at == groups.end()) at = groups.insert(at, {option.group, {}});
    at->second.push_back(&option);
  }
  return groups;
}

std::string FormatHelp(const Command& command, std::string_view path) {
  std::string out;
  if (!command.examples.empty()) {
    out += "Examples:\n";
    for (const Example& example : command.examples) {
      out += fmt::format("  {}\n      {}\n", example.command, example.what);
    }
    out += "\n";
  }
  out += fmt::format("Usage: {}\n\n", UsageLine(command, path));
  out += Wrap(command.description.empty() ? command.summary + "." : command.description, 0,
              kHelpColumns);
  if (!command.children.empty()) {
    out += "\n" + FormatChildren(command) +
           fmt::format("\nSee '{} COMMAND --help' for the options of a command.\n", path);
  }
  if (command.IsGroup()) return out;
  for (const auto& [group, options] : OptionGroups(command)) {
    out += fmt::format("\n{}:\n", group);
    for (const Option* option : options) out += FormatOption(*option);
  }
  out +=
      "\n" +
      Wrap(
          "Every option can also be set in the environment as MILLRACE_<NAME> (--max-model-len is "
          "MILLRACE_MAX_MODEL_LEN) or in the YAML file of --config (max-model-len: 4096). The "
          "command "
          "line wins over the environment, the environment over the file.",
          0, kHelpColumns);
  return out;
}

}  // namespace millrace::apps
