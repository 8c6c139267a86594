// DistServe's coefficients and Millrace's own profile file: accepted profiles give finite times
// that are never negative, and a profile reads back from its text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "cost/distserve_cost.h"
#include "cost/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::cost;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const BatchShape batch = {.prefill_tokens = 300,
                            .prefill_tokens_squared = 90000,
                            .prefill_sequences = 1,
                            .decode_sequences = 7,
                            .decode_context = 3000};
  const auto distserve = DistServeProfile::Parse(text, "coefficients");
  if (distserve.ok()) {
    for (const auto& [model, tp] : distserve->Keys()) {
      const double seconds = DistServeCost(distserve->Find(model, tp).value()).Seconds(batch);
      MR_CHECK(std::isfinite(seconds) && seconds >= 0) << seconds;
    }
  }
  const auto profile = ParseProfile(text, "profile");
  if (profile.ok()) {
    const double seconds = MeasuredCost(*profile).Seconds(batch);
    MR_CHECK(std::isfinite(seconds) && seconds >= 0) << seconds;
    MR_CHECK(ParseProfile(FormatProfile(*profile), "again").ok());
    const auto line = ParseProfile(FormatProfileLine(*profile), "line");
    MR_CHECK(line.ok() && MeasuredCost(*line).Seconds(batch) == seconds);
    if (CheckPlausible(*profile).ok()) {
      const ProfileRates rates = RatesOf(*profile);
      MR_CHECK(std::isfinite(rates.prefill_tokens_per_s) && rates.prefill_tokens_per_s > 0);
      MR_CHECK(std::isfinite(rates.decode_tokens_per_s) && rates.decode_tokens_per_s > 0);
    }
  }
  return 0;
}
