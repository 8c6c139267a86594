// From words to a command with its options set. Each option takes its value from the first of: the
// command line, MILLRACE_<NAME> in the environment, the config file (--config), its default.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"

namespace millrace::apps {

// nullopt: not set. main() hands in getenv, tests a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

struct Invocation {
  const Command* command = nullptr;
  std::string path;   // "millrace bench serve"
  bool help = false;  // print help and leave; no option was stored
};

// `args` without the program's name. Every error is the user's and one line, beginning with the
// command's path.
Result<Invocation> ParseCommandLine(const Command& root, const std::vector<std::string>& args,
                                    const Environment& environment);

// The options every command has: --config, --log-level (into command.log_level), --help.
void AddGeneralOptions(Command& command);

}  // namespace millrace::apps
