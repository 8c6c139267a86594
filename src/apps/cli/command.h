// Command: one command of the program with its options, examples and subcommands. The tree of
// commands describes the whole command line. main() builds it at start; afterwards it is only read.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/option.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"

namespace millrace::apps {

struct Example {
  std::string command;  // "millrace serve models/demo"
  std::string what;     // what the example does, one line
};

struct Command {
  std::string name;         // "serve"
  std::string summary;      // one line, no full stop
  std::string description;  // a paragraph or more
  std::vector<Example> examples;
  std::vector<Option> options;
  std::vector<std::unique_ptr<Command>> children;
  std::map<std::string, std::string> removed;  // children of earlier versions: what replaces them
  bool hidden = false;                         // not in help, man page or completion
  LogFormat log_format = LogFormat::kText;
  std::string log_level = "info";  // the default, or the value of --log-level

  // Gets the names of the options on the command line, before `validate`. Options from the
  // environment or the config file are not included, because these serve several commands.
  std::function<void(const std::set<std::string>& names)> on_given;
  // Checks several options together. An error is the user's: exit code 2.
  std::function<Status()> validate;
  // An error is one line on stderr and exit code 1. It may also return kInvalidArgument.
  std::function<Status()> run;

  // Appends under `group`; the reference is valid until the next Add.
  Option& Add(std::string group, Option option, std::string help) {
    option.group = std::move(group);
    option.help = std::move(help);
    options.push_back(std::move(option));
    return options.back();
  }
  // Returns an option, for a command that gives a shared option its own meaning. REQUIRES: the
  // option exists.
  Option& Named(std::string_view option_name) {
    for (Option& option : options) {
      if (option.name == option_name) return option;
    }
    MR_CHECK(false) << name << " has no option " << option_name;
    return options.front();
  }
  // A group does not run itself; only its children do. A command with children and `run` is not a
  // group: it has its own options.
  bool IsGroup() const { return !children.empty() && !run; }
  const Command* Child(std::string_view child_name) const {
    for (const auto& child : children) {
      if (child->name == child_name) return child.get();
    }
    return nullptr;
  }
};

}  // namespace millrace::apps
