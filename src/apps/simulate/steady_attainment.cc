#include "apps/simulate/steady_attainment.h"

#include <algorithm>

namespace millrace::apps {

SteadyAttainment::SteadyAttainment(const LatencyLimits& limits, uint64_t requests)
    : limits_(limits),
      filling_(static_cast<uint64_t>(kFilling * static_cast<double>(requests))),
      most_(requests - filling_) {}

void SteadyAttainment::Arrived(RequestId id, Time at, int output_tokens) {
  alive_.emplace(id, Alive{.arrival = at,
                           .gaps = std::max(1, output_tokens - 1),
                           .counts = ++arrived_ > filling_,
                           .first = {}});
}

void SteadyAttainment::Heard(const RequestOutput& output, Time now) {
  const auto found = alive_.find(output.request);
  if (found == alive_.end()) return;
  Alive& request = found->second;
  if (!request.first && !output.tokens.empty()) {
    request.first = now;
    if (!limits_.KeepsTtft((now - request.arrival).seconds())) Miss(request);
  }
  // Its tokens so far may have taken longer than all may.
  if (request.first && !limits_.KeepsTpot((now - *request.first).seconds() / request.gaps)) {
    Miss(request);
  }
  if (!output.finish) return;
  const bool failed =
      output.finish == FinishReason::kError || output.finish == FinishReason::kAbort;
  if (failed || !request.first) Miss(request);
  kept_ += request.counts && !request.missed ? 1 : 0;
  alive_.erase(found);
}

void SteadyAttainment::Miss(Alive& request) {
  if (!request.missed) ++(request.counts ? missed_ : missed_filling_);
  request.missed = true;
}

bool SteadyAttainment::FillingMisses() const {
  const double may_miss = (1 - limits_.share()) * static_cast<double>(filling_);
  return static_cast<double>(missed_filling_) > std::max(1.0, kMissesWhileFilling * may_miss);
}

bool SteadyAttainment::decided() const {
  const auto most = static_cast<double>(most_);
  return FillingMisses() || static_cast<double>(kept_) >= limits_.share() * most ||
         static_cast<double>(most_ - missed_) < limits_.share() * most;
}

bool SteadyAttainment::kept() const {
  const double counted = static_cast<double>(std::max(arrived_, filling_) - filling_);
  return !FillingMisses() && counted > 0 && static_cast<double>(kept_) >= limits_.share() * counted;
}

}  // namespace millrace::apps
