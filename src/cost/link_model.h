// Links and their traffic: the time of a message is latency + bytes / bandwidth; the cost of
// swapping a sequence out and in compared with recomputing it; and money per token. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "cost/fit.h"
#include "cost/step_cost.h"

namespace millrace::cost {

// No link is faster. A fit beyond it has found noise, not a bandwidth.
inline constexpr double kBytesPerSecondMax = 1e15;

struct LinkTime {
  double latency_s = 0;
  double bytes_per_s = 0;  // above zero

  double Seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

// A ring all-reduce of `bytes` on each of `devices`: 2 (n - 1) rounds of bytes / n.
double AllReduceSeconds(const LinkTime& link, int devices, double bytes);

struct TransferSample {
  double bytes = 0;
  double seconds = 0;
};
struct LinkFit {
  LinkTime link;
  RelativeErrors errors;
};
// kInvalidArgument if the samples show no bandwidth (fewer than two sizes, or no growth beyond
// noise).
Result<LinkFit> FitLink(std::span<const TransferSample> samples);

// Seconds to bring back a preempted sequence of `tokens` in either of two ways.
struct PreemptionPrice {
  double swap_s = 0;       // moves its KV to the host and back
  double recompute_s = 0;  // recomputes its tokens in one prefill
  bool SwapIsCheaper() const { return swap_s < recompute_s; }
};
PreemptionPrice PriceOfPreemption(const StepCost& cost, const LinkTime& host_link,
                                  int64_t kv_bytes_per_token, int64_t tokens);

// REQUIRES: tokens_per_s > 0.
inline double UsdPerMillionTokens(double usd_per_hour, double tokens_per_s) {
  return usd_per_hour / 3600 / tokens_per_s * 1e6;
}

}  // namespace millrace::cost
