// Availability traces: when machines of a cloud came and went, read from published traces into one
// form. Untrusted text; every error names the line. Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::sim {

enum class AvailabilityKind : uint8_t { kAdd, kRemove, kLoad };

struct AvailabilityEvent {
  double at_s = 0;  // when it takes effect; the notice is a grace period earlier
  AvailabilityKind kind = AvailabilityKind::kAdd;
  std::vector<int> nodes;                // each in [0, node_count)
  std::optional<double> requests_per_s;  // the load to prepare for from here on
};

struct AvailabilityTrace {
  std::vector<AvailabilityEvent> events;  // by time
  double end_s = 0;
  int node_count = 0;                    // a node that returns counts as new
  int most_alive = 0, fewest_alive = 0;  // after the first event
};

inline constexpr size_t kAvailabilityBytesMax = size_t{16} << 20;
inline constexpr int kAvailabilityEventsMax = 100'000;
inline constexpr int kAvailabilityNodesMax = 100'000;
inline constexpr int kAvailabilityAliveMax = 1024;

// Three formats, distinguished by their first line:
//   [ms, "add"|"remove"|"other"|"no-op"|"migration"|"DONE", {"nodes": [...], "required_tpt": x}]
//     one JSON array per line (SpotServe's segments, Parcae's);
//   ms,add|remove,node   (SpotServe's full trace, Parcae's events);
//   time,count           (Bamboo's and Parcae's counts), in units of `count_unit_s`. Counts have
//     no names: the oldest machine leaves first.
Result<AvailabilityTrace> ParseAvailability(std::string_view text, double count_unit_s = 1);

// `nodes` machines that stay from 0 to `end_s`, like an on-demand cluster.
AvailabilityTrace ConstantAvailability(int nodes, double end_s);

}  // namespace millrace::sim
