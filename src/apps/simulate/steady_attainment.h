// SteadyAttainment: whether enough requests of a run keep their limits once the cluster is full.
// The first requests meet empty machines, so they do not count; but if many of them miss, later
// ones will. It knows the answer as soon as the rest cannot change it. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/clock.h"
#include "core/ids.h"
#include "core/latency_limits.h"
#include "core/output.h"

namespace millrace::apps {

class SteadyAttainment {
 public:
  // The share of a run's requests that arrive while the cluster fills.
  static constexpr double kFilling = 1.0 / 3;
  // Of the requests that may miss, among those of that time: if so many do, the limits are missed.
  static constexpr double kMissesWhileFilling = 2;

  // At most `requests` arrive.
  SteadyAttainment(const LatencyLimits& limits, uint64_t requests);

  // It will be answered with `output_tokens`.
  void Arrived(RequestId id, Time at, int output_tokens);
  // Tokens reached the client, or the request ended.
  void Heard(const RequestOutput& output, Time now);

  // Whether the requests that have not ended cannot change the answer.
  bool decided() const;
  // Those that have not ended, or were never heard of, miss the limits.
  bool kept() const;

 private:
  struct Alive {
    Time arrival;
    int gaps = 0;  // between its tokens
    bool counts = false, missed = false;
    std::optional<Time> first;
  };
  void Miss(Alive& request);
  bool FillingMisses() const;

  const LatencyLimits limits_;
  const uint64_t filling_;  // requests that do not count
  const uint64_t most_;     // that may count
  uint64_t arrived_ = 0, kept_ = 0, missed_ = 0;
  uint64_t missed_filling_ = 0;
  std::unordered_map<RequestId, Alive> alive_;
};

}  // namespace millrace::apps
