// Profiles of layer times: an accepted profile must give finite latencies and a decision.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/spot/optimizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::plan::spot;
  const auto profile = ParseProfile({reinterpret_cast<const char*>(data), size});
  if (!profile.ok()) {
    MR_CHECK(!profile.status().message().empty());
    return 0;
  }
  const auto best = Optimize(*profile, {.batch_max = 8}, 16, 1, {});
  if (!best.has_value()) return 0;
  MR_CHECK(std::isfinite(best->execution_ms) && best->execution_ms > 0);
  MR_CHECK(best->config.devices() <= 16);
  return 0;
}
