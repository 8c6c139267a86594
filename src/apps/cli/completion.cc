#include "apps/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

namespace millrace::apps {
namespace {

// Calls `f(path words joined by a space, command)` for every command that is not hidden.
void Walk(const Command& command, const std::string& path,
          const std::function<void(const std::string&, const Command&)>& f) {
  f(path, command);
  for (const auto& child : command.children) {
    if (!child->hidden) Walk(*child, path.empty() ? child->name : path + " " + child->name, f);
  }
}

std::vector<std::string> Names(const Option& option) {
  std::vector<std::string> names;
  if (!option.positional) names.push_back("--" + option.name);
  if (option.negatable) names.push_back("--no-" + option.name);
  names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  return names;
}

std::string Words(const Command& command) {
  std::vector<std::string> words;
  for (const auto& child : command.children) {
    if (!child->hidden) words.push_back(child->name);
  }
  for (const Option& option : command.options) {
    if (!option.refused.empty()) continue;
    for (std::string& name : Names(option)) words.push_back(std::move(name));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

const Option* Positional(const Command& command) {
  for (const Option& option : command.options) {
    if (option.positional) return &option;
  }
  return nullptr;
}

// How bash completes a value: "words:a b", "file", "folder" or "none".
std::string BashValue(const Option& option) {
  if (!option.choices.empty()) return fmt::format("words:{}", fmt::join(option.choices, " "));
  if (option.kind == ValueKind::kFile) return "file";
  if (option.kind == ValueKind::kFolder) return "folder";
  return "none";
}

std::string BashCases(const Command& root) {
  std::string cases;
  Walk(root, "", [&](const std::string& path, const Command& command) {
    cases += fmt::format("    '{}')\n      words='{}'\n", path, Words(command));
    const Option* positional = Positional(command);
    if (positional != nullptr) {
      cases += fmt::format("      operand='{}'\n", BashValue(*positional));
    }
    std::string values;
    for (const Option& option : command.options) {
      if (option.arity == Arity::kFlag || !option.refused.empty()) continue;
      const auto names = Names(option);
      if (names.empty()) continue;
      values +=
          fmt::format("        {}) value='{}' ;;\n", fmt::join(names, "|"), BashValue(option));
    }
    if (!values.empty()) cases += "      case \"$previous\" in\n" + values + "      esac\n";
    cases += "      ;;\n";
  });
  return cases;
}

std::string BashCommands(const Command& root) {
  std::string out;
  Walk(root, "", [&](const std::string& path, const Command&) {
    if (!path.empty()) out += (out.empty() ? "'" : "|'") + path + "'";
  });
  return out;
}

std::string Escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string ZshAction(const Option& option) {
  if (option.arity == Arity::kFlag) return "";
  const std::string name = Escaped(option.value_name, ":[]()");
  if (!option.choices.empty()) {
    return fmt::format(":{}:({})", name, fmt::join(option.choices, " "));
  }
  if (option.kind == ValueKind::kFile) return fmt::format(":{}:_files", name);
  if (option.kind == ValueKind::kFolder) return fmt::format(":{}:_files -/", name);
  return fmt::format(":{}: ", name);
}

std::string ZshFunctionName(const std::string& path) {
  std::string name = "_millrace";
  for (char c : path.empty() ? path : " " + path) name += c == ' ' || c == '-' ? '_' : c;
  return name;
}

std::string ZshGroup(const std::string& path, const Command& command) {
  std::string out =
      fmt::format("{}() {{\n  local -a commands\n  commands=(\n", ZshFunctionName(path));
  std::string cases;
  for (const auto& child : command.children) {
    if (child->hidden) continue;
    out += fmt::format("    '{}:{}'\n", child->name, Escaped(child->summary, ":"));
    cases += fmt::format("    {}) {} ;;\n", child->name,
                         ZshFunctionName(path.empty() ? child->name : path + " " + child->name));
  }
  out += "  )\n";
  if (!command.options.empty()) {
    out += fmt::format("  if [[ $words[2] == -* ]]; then {}_options; return; fi\n",
                       ZshFunctionName(path));
  }
  out += "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n";
  out += "  shift words; (( CURRENT-- ))\n  case $words[1] in\n" + cases + "  esac\n}\n";
  return out;
}

std::string ZshLeaf(const std::string& path, const Command& command) {
  std::string out = fmt::format("{}() {{\n  _arguments", ZshFunctionName(path));
  for (const Option& option : command.options) {
    if (!option.refused.empty()) continue;
    if (option.positional) out += fmt::format(" \\\n    '1{}'", ZshAction(option));
    for (const std::string& name : Names(option)) {
      out +=
          fmt::format(" \\\n    '*{}[{}]{}'", name, Escaped(option.help, "[]:"), ZshAction(option));
    }
  }
  return out + "\n}\n";
}

// A condition that is true when the words typed so far lead exactly to `command`.
std::string FishCondition(const Command& root, const std::string& path, const Command& command) {
  std::string condition;
  std::string word;
  for (char c : path + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      condition +=
          fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ", word);
      word.clear();
    }
  }
  std::vector<std::string> beyond;  // children; for 'serve' also the groups that have a 'serve'
  for (const auto& child : command.children) {
    if (!child->hidden) beyond.push_back(child->name);
  }
  if (path.find(' ') == std::string::npos && !path.empty() && command.children.empty()) {
    for (const auto& group : root.children) {
      if (!group->children.empty()) beyond.push_back(group->name);
    }
  }
  if (beyond.empty()) return condition;
  return fmt::format("{}not __fish_seen_subcommand_from {}",
                     condition.empty() ? "" : condition + "; and ", fmt::join(beyond, " "));
}

std::string FishOption(const std::string& condition, const Option& option) {
  std::string line = fmt::format("complete -c millrace -n '{}'", condition);
  for (const std::string& name : Names(option)) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (option.arity != Arity::kFlag) line += " -r";
  if (!option.choices.empty()) line += fmt::format(" -f -a '{}'", fmt::join(option.choices, " "));
  if (option.kind == ValueKind::kFile) line += " -F";
  if (option.kind == ValueKind::kFolder) line += " -f -a '(__fish_complete_directories)'";
  return line + fmt::format(" -d '{}'\n", Escaped(option.help, ""));
}

}  // namespace

std::string BashCompletion(const Command& root) {
  return fmt::format(
      R"(# bash completion for millrace; load it with: source <(millrace completion bash)
_millrace() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local path='' words='' operand='none' value='' next='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    next="${{path:+$path }}${{COMP_WORDS[i]}}"
    case "$next" in
      {}) path="$next" ;;
      *) break ;;
    esac
  done
  case "$path" in
{}  esac
  COMPREPLY=()
  if [[ -z "$value" && "$current" != -* && "$operand" != none ]]; then value="$operand"; fi
  case "$value" in
    words:*) COMPREPLY=($(compgen -W "${{value#words:}}" -- "$current")) ;;
    file) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")) ;;
    folder) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$current")) ;;
    none) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
  esac
}}
complete -F _millrace millrace
)",
      BashCommands(root), BashCases(root));
}

std::string ZshCompletion(const Command& root) {
  std::string out = "#compdef millrace\n# zsh completion for millrace\n";
  Walk(root, "", [&](const std::string& path, const Command& command) {
    out += command.children.empty() ? ZshLeaf(path, command) : ZshGroup(path, command);
    if (!command.children.empty() && !command.options.empty()) {
      out += ZshLeaf(path + " options", command);
    }
  });
  return out + "compdef _millrace millrace\n";
}

std::string FishCompletion(const Command& root) {
  std::string out = "# fish completion for millrace\ncomplete -c millrace -f\n";
  Walk(root, "", [&](const std::string& path, const Command& command) {
    const std::string condition = FishCondition(root, path, command);
    for (const auto& child : command.children) {
      if (child->hidden) continue;
      out += fmt::format("complete -c millrace -n '{}' -a {} -d '{}'\n", condition, child->name,
                         Escaped(child->summary, ""));
    }
    for (const Option& option : command.options) {
      if (!option.refused.empty()) continue;
      if (option.positional && option.kind == ValueKind::kFolder) {
        out += fmt::format("complete -c millrace -n '{}' -a '(__fish_complete_directories)'\n",
                           condition);
      }
      if (!Names(option).empty()) out += FishOption(condition, option);
    }
  });
  return out;
}

}  // namespace millrace::apps
