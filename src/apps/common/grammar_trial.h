// Compiles a grammar in a process of its own first. Some texts make the compiler take all memory,
// run for hours or exhaust the stack; then only that process ends, and the request gets an error.
// Any thread; the calling one waits for the process.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::apps {

// What one grammar may take. A worker that compiles it again waits about as long, which must be
// less than its stuck_limit.
inline constexpr int kGrammarCpuSeconds = 1;
inline constexpr int kGrammarWallSeconds = 8;
inline constexpr size_t kGrammarMemoryBytes = size_t{1} << 30;
// Half of what the threads have that compile it again, where the limit of stacks is unlimited.
inline constexpr size_t kGrammarStackBytes = size_t{1} << 20;

// kInvalidArgument: it is unsound, or needs more than these limits. Runs this program with the
// command below.
Status TryGrammar(const std::string& grammar);

// In that process: reads a grammar from stdin, compiles it within the limits, and prints the line
// "ok" or the error.
Status RunGrammarTrial();

}  // namespace millrace::apps
