#include "sim/cluster/wires.h"

#include <algorithm>

namespace millrace::sim {

// A node that no link connects to the coordinator hears it at once.
Time Wires::Control(int from, int to, double bytes, Time now) {
  if (!links_.Connected(from, to)) return now;
  return bytes > 0 ? links_.Send(from, to, bytes, now) : now + links_.Latency(from, to);
}

Time Wires::Down(int place, double bytes, Duration delay, Time now) {
  Time& last = last_down_[static_cast<size_t>(place)];
  const int node = node_of_[static_cast<size_t>(place)];
  return last = std::max(last, Control(home_, node, bytes, now + delay));
}

Time Wires::Up(int place, double bytes, Time now) {
  Time& last = last_up_[static_cast<size_t>(place)];
  const int node = node_of_[static_cast<size_t>(place)];
  return last = std::max(last, Control(node, home_, bytes, now));
}

std::optional<Time> Wires::Across(int from, int to, double bytes, Time now) {
  const int a = node_of_[static_cast<size_t>(from)], b = node_of_[static_cast<size_t>(to)];
  if (from == to) return now;
  if (a == b) {
    const double carry_s = inside_.bytes_per_s > 0 ? bytes / inside_.bytes_per_s : 0;
    return now + Duration::Seconds(inside_.latency_s + carry_s);
  }
  if (!links_.Connected(a, b)) return std::nullopt;
  return bytes > 0 ? links_.Send(a, b, bytes, now) : now + links_.Latency(a, b);
}

}  // namespace millrace::sim
