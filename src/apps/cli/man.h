// The man page, written from the command tree, so that it always matches the program. Pure
// functions; any thread.
#pragma once

#include <string>

#include "apps/cli/command.h"

namespace millrace::apps {

// millrace(1) in the man macro package of roff.
std::string FormatManPage(const Command& root, const std::string& version);

}  // namespace millrace::apps
