// The text of --help, from the command's description. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/command.h"

namespace millrace::apps {

inline constexpr int kHelpColumns = 88;

std::string FormatHelp(const Command& command, std::string_view path);

// Used by the man page as well.
std::string UsageLine(const Command& command, std::string_view path);
std::string OptionSyntax(const Option& option);  // "-c, --max-model-len TOKENS"
std::string OptionText(const Option& option);    // help with its default
// The groups in order of first appearance, each with the options that help shows.
std::vector<std::pair<std::string, std::vector<const Option*>>> OptionGroups(
    const Command& command);

// Breaks `text` at spaces; each line starts with `indent` spaces.
std::string Wrap(std::string_view text, int indent, int columns);

}  // namespace millrace::apps
