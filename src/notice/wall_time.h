// WallTime: a moment of the calendar, and the texts in which providers name one. Pure; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/clock.h"

namespace millrace::notice {

struct WallTime {
  int64_t s = 0;  // since 1970-01-01T00:00:00Z
  friend constexpr auto operator<=>(WallTime, WallTime) = default;
};
WallTime WallNow();

// What a source is told of the time: both clocks at one moment.
struct Moment {
  Time time;
  WallTime wall;
};

// RFC 3339: "2027-09-18T08:22:00Z", also with a fraction, which is cut off, or an offset.
// nullopt: anything else, or a year outside [1970, 9999].
std::optional<WallTime> ParseRfc3339(std::string_view text);
// RFC 1123, as in HTTP: "Mon, 19 Sep 2027 18:29:47 GMT"; the day of the week may be missing, as in
// AWS's maintenance events, and is not checked.
std::optional<WallTime> ParseRfc1123(std::string_view text);

}  // namespace millrace::notice
