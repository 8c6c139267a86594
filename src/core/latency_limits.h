// LatencyLimits: the latency that each request should have (the service level objective of
// --slo), and the share of requests that should have it. A request keeps the limits if its own time
// to first token (TTFT) and its own mean time per output token after the first (TPOT) are within
// them. A value; any thread.
#pragma once

#include <optional>

namespace millrace {

inline constexpr double kAttainmentDefault = 0.9;

struct LatencyLimits {
  std::optional<double> ttft_s, tpot_s;
  std::optional<double> attainment;  // kAttainmentDefault if absent

  bool any() const { return ttft_s || tpot_s; }
  // The share of requests that must keep every limit.
  double share() const { return attainment.value_or(kAttainmentDefault); }
  bool KeepsTtft(double seconds) const { return !ttft_s || seconds <= *ttft_s; }
  // An answer of one token has no TPOT and keeps the limit.
  bool KeepsTpot(double seconds) const { return !tpot_s || seconds <= *tpot_s; }
};

}  // namespace millrace
