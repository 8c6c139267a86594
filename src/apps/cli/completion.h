// Completion scripts for bash, zsh and fish, written from the command tree. Pure functions; any
// thread.
#pragma once

#include <string>

#include "apps/cli/command.h"

namespace millrace::apps {

std::string BashCompletion(const Command& root);
std::string ZshCompletion(const Command& root);
std::string FishCompletion(const Command& root);

}  // namespace millrace::apps
