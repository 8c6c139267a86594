#include "experiments/lib/spotserve/regret_rule.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::experiments::spotserve {

double RegretRule::CostRate(const Candidate& c, double requests_per_s) const {
  const double load = requests_per_s * options_.optimize.headroom;
  const double missing = std::max(0.0, load - c.throughput_per_s);
  double latency_s = c.execution_ms / 1000;
  if (const auto& variation = options_.optimize.arrival_variation; variation.has_value()) {
    // Waiting in the queue costs at most as much as not being served.
    latency_s +=
        std::min(WaitingMs(c, requests_per_s, *variation) / 1000, options_.overload_wait_s);
  }
  return requests_per_s * latency_s + missing * options_.overload_wait_s +
         options_.instance_weight * Instances(c.config, space_.devices_per_instance);
}

RegretRule::Decision RegretRule::Take(Time now, const std::optional<Candidate>& candidate,
                                      bool forced) {
  const bool changed = candidate.has_value() != current_.has_value() ||
                       (candidate.has_value() && candidate->config != current_->config);
  current_ = candidate;
  regret_ = 0;
  if (changed) last_change_ = now;
  return {candidate, changed, forced};
}

RegretRule::Decision RegretRule::Decide(Time now, int devices, double requests_per_s,
                                        double switch_s) {
  const auto best = Optimize(profile_, space_, devices, requests_per_s, options_.optimize);
  const double elapsed_s = std::max(0.0, (now - last_decision_).seconds());
  last_decision_ = now;
  if (!current_.has_value() || !best.has_value()) return Take(now, best, false);
  if (current_->config.devices() > devices) return Take(now, best, true);
  current_->carries_load =
      current_->throughput_per_s >= requests_per_s * options_.optimize.headroom;
  const double gain = CostRate(*current_, requests_per_s) - CostRate(*best, requests_per_s);
  regret_ = std::max(0.0, regret_ + gain * elapsed_s);
  // Every request in flight waits for the switch; requests that arrive meanwhile wait half of it on
  // average.
  const double in_flight = requests_per_s * current_->execution_ms / 1000;
  const double price = switch_s * (in_flight + requests_per_s * switch_s / 2);
  if (best->config == current_->config || gain <= 0 || regret_ <= price ||
      now - last_change_ < options_.dwell) {
    return {current_, false, false};
  }
  return Take(now, best, false);
}

}  // namespace millrace::experiments::spotserve
