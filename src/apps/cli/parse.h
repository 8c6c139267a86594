// Turns words into a command with its options set. Each option takes its value from the first of:
// the command line, MILLRACE_<NAME> in the environment, the config file (--config), its default.
// One thread, at program start.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"

namespace millrace::apps {

// nullopt: not set. main() passes getenv, tests pass a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

struct Invocation {
  const Command* command = nullptr;
  std::string path;   // "millrace bench serve"
  bool help = false;  // print help and exit; no option was stored
};

// `args` excludes the program's name. Every error is the user's: one line that begins with the
// command's path.
Result<Invocation> ParseCommandLine(const Command& root, const std::vector<std::string>& args,
                                    const Environment& environment);

// Adds the options that every command has: --config, --log-level (into command.log_level),
// --log-format, --help.
void AddGeneralOptions(Command& command);

// For `validate`: kInvalidArgument with the text "--NAME " and `why` when one of `names` is among
// `given`, because the option would have no effect.
Status RefuseGiven(const std::set<std::string>& given, std::initializer_list<const char*> names,
                   std::string_view why);
// The same for all options except `names`.
Status RefuseOthers(const std::set<std::string>& given, std::initializer_list<const char*> names,
                    std::string_view why);

}  // namespace millrace::apps
