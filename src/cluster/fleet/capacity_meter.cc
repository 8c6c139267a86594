#include "cluster/fleet/capacity_meter.h"

#include <algorithm>

namespace millrace::cluster {
namespace {

constexpr double kSaturated = 0.9;   // answers per arrival; with fewer, a queue grows
constexpr double kWhenMissed = 0.8;  // the next factor, if limits are missed
constexpr double kReturn = 0.02;     // of the way back to 1, per window

}  // namespace

void CapacityMeter::Judge(const CapacitySeen& seen, Time now) {
  since_ = now;
  if (seen.nominal_per_s <= 0) return;
  const double measured = seen.answers_per_s / seen.nominal_per_s;
  const bool enough = seen.answers >= options_.answers_min;
  if (seen.queued && seen.answers_per_s < kSaturated * seen.arrivals_per_s) {
    factor_ = std::min(factor_, measured);
  } else if (enough && seen.attainment < options_.share) {
    factor_ *= kWhenMissed;
  } else if (enough && measured > factor_) {
    factor_ = measured;
  } else {
    factor_ += (1 - factor_) * kReturn;
  }
  factor_ = std::clamp(factor_, CapacityOptions::kFactorMin, CapacityOptions::kFactorMax);
}

}  // namespace millrace::cluster
