// Splits the words after a command into options and their values. The only user of CLI11. Pure
// function; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"

namespace millrace::apps {

struct Tokens {
  std::map<std::string, std::vector<std::string>> given;  // by option name
  std::vector<std::string> left;                          // words of no option
};

// An error's message begins with the option: "--port needs a value".
Result<Tokens> Tokenize(const Command& command, const std::vector<std::string>& words);

}  // namespace millrace::apps
