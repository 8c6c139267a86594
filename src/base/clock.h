// Time is passed in, never looked up: state machines take a Time argument; their hosts own a Clock.
//
// Time is monotonic nanoseconds since an arbitrary origin, one origin per process. Wall-clock time
// exists only where it is printed.
#pragma once

#include <compare>
#include <cstdint>

namespace millrace {

struct Duration {
  int64_t ns = 0;
  static constexpr Duration Nanos(int64_t v) { return {v}; }
  static constexpr Duration Micros(int64_t v) { return {v * 1000}; }
  static constexpr Duration Millis(int64_t v) { return {v * 1'000'000}; }
  static constexpr Duration Seconds(double v) { return {static_cast<int64_t>(v * 1e9)}; }
  constexpr double seconds() const { return static_cast<double>(ns) * 1e-9; }
  constexpr double millis() const { return static_cast<double>(ns) * 1e-6; }
  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) { return {a.ns + b.ns}; }
  friend constexpr Duration operator-(Duration a, Duration b) { return {a.ns - b.ns}; }
};

struct Time {
  int64_t ns = 0;
  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Duration operator-(Time a, Time b) { return {a.ns - b.ns}; }
  friend constexpr Time operator+(Time a, Duration b) { return {a.ns + b.ns}; }
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
};

// CLOCK_MONOTONIC. Any thread.
class SteadyClock : public Clock {
 public:
  Time Now() const override;
};

// Moves only when advanced. One thread.
class ManualClock : public Clock {
 public:
  Time Now() const override { return now_; }
  void Advance(Duration d) { now_ = now_ + d; }

 private:
  Time now_;
};

}  // namespace millrace
