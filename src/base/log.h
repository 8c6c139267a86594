// One process-wide logger: lines on stderr, "time level message". Any thread.
//
//   MR_LOG(info, "loaded {} tensors in {:.2f} s", n, seconds);
//
// Text from outside (prompts, headers, names) goes through Printable() first, so that no request
// can forge a line or send escape sequences to the terminal. Secrets are never logged.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

// Sets level ("trace" ... "error", "off") and format once, at the start of main().
Status InitLog(std::string_view level);

// `text` with control characters escaped, cut at `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = 256);

}  // namespace millrace

#define MR_LOG(level, ...) ::spdlog::level(__VA_ARGS__)
