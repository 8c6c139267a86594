// Availability traces in three formats: every accepted trace is ordered and consistent.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "base/check.h"
#include "sim/load/availability.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::sim;
  const auto trace = ParseAvailability({reinterpret_cast<const char*>(data), size}, 3600);
  if (!trace.ok()) {
    MR_CHECK(!trace.status().message().empty());
    return 0;
  }
  std::set<int> alive;
  double last = 0;
  for (const AvailabilityEvent& event : trace->events) {
    MR_CHECK(event.at_s >= last && event.at_s <= trace->end_s);
    last = event.at_s;
    for (const int node : event.nodes) {
      MR_CHECK(node >= 0 && node < trace->node_count);
      const bool fits =
          event.kind == AvailabilityKind::kAdd ? alive.insert(node).second : alive.erase(node) == 1;
      MR_CHECK(fits) << node;
    }
    MR_CHECK(static_cast<int>(alive.size()) <= trace->most_alive);
  }
  return 0;
}
