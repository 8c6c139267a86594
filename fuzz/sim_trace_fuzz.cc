// Request traces of the benchmark: Azure CSV and Mooncake JSON lines.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sim/load/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  using namespace millrace::sim;
  auto entries = ParseTrace({reinterpret_cast<const char*>(data), size}, 1000);
  if (!entries.ok()) return 0;
  MR_CHECK(!entries->empty() && entries->size() <= 1000 && entries->front().arrival_s == 0);
  RescaleRate(*entries, 5);
  double last = 0;
  for (const TraceEntry& entry : *entries) {
    MR_CHECK(entry.arrival_s >= last) << entry.arrival_s;
    MR_CHECK(entry.input_tokens >= 0 && entry.input_tokens <= kTraceTokensMax);
    last = entry.arrival_s;
  }
  return 0;
}
