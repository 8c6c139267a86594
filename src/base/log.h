// One process-wide logger: lines on stderr, "time level message", or a JSON object each. Any
// thread.
//
//   MR_LOG(info, "loaded {} tensors in {:.2f} s", n, seconds);
//
// Text from outside (prompts, headers, names) goes through Printable() first, so that no request
// can forge a line or send escape sequences to the terminal. Secrets are never logged.
#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

enum class LogFormat : uint8_t { kText, kJson };

// Sets level ("trace" ... "error", "off") and format once, at the start of main().
Status InitLog(std::string_view level, LogFormat format = LogFormat::kText);

// {"time": "2026-01-31T12:00:00.123Z", "level": ..., "message": ...} without a line break. Bytes
// that are not UTF-8 become U+FFFD. `process`: the one that has written it; empty: this one.
std::string JsonLogLine(std::chrono::system_clock::time_point time, std::string_view level,
                        std::string_view message, std::string_view process = {});
// The line of a child process as such an object with its name: its own object, or any other text as
// the message of one.
std::string JsonLogLineOf(std::string_view process, std::string_view line);

// `text` with control characters escaped, cut at `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = 256);

}  // namespace millrace

#define MR_LOG(level, ...) ::spdlog::level(__VA_ARGS__)
