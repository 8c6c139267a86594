// LocalTime: a time of day for people: "2026-11-26 15:46:25". Pure but for the time zone; any
// thread.
#pragma once

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>

namespace millrace::apps {

inline std::string LocalTime(double unix_s) {
  const auto seconds = static_cast<std::time_t>(std::clamp(unix_s, 0.0, 1e11));
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

}  // namespace millrace::apps
