// Command: one verb of the program, with its options, examples and children; the tree of them is
// the whole command line. Built at start by main(), then only read.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/option.h"
#include "base/status.h"

namespace millrace::apps {

struct Example {
  std::string command;  // "millrace serve models/demo"
  std::string what;     // what it does, one line
};

struct Command {
  std::string name;         // "serve"
  std::string summary;      // one line, no full stop
  std::string description;  // a paragraph or more
  std::vector<Example> examples;
  std::vector<Option> options;
  std::vector<std::unique_ptr<Command>> children;
  bool hidden = false;             // not in help, man page or completion
  std::string log_level = "info";  // the default, then what --log-level said

  // Checks that need several options at once; an error is the user's: exit code 2.
  std::function<Status()> validate;
  // An error is one line on stderr and exit code 1; kInvalidArgument from here too.
  std::function<Status()> run;

  // Appends under `group`; the reference is valid until the next Add.
  Option& Add(std::string group, Option option, std::string help) {
    option.group = std::move(group);
    option.help = std::move(help);
    options.push_back(std::move(option));
    return options.back();
  }
  // Only its children run; a command that has children and `run` takes its options in their place.
  bool IsGroup() const { return !children.empty() && !run; }
  const Command* Child(std::string_view child_name) const {
    for (const auto& child : children) {
      if (child->name == child_name) return child.get();
    }
    return nullptr;
  }
};

}  // namespace millrace::apps
