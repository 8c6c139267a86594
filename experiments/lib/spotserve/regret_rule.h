// When to change the configuration: hysteresis with the price of a change, so that a load near a
// threshold does not cause constant reconfiguration. SpotServe has none: its released code changes
// whenever the optimum does.
//
// Pure: times are arguments and must not go back. One thread.
#pragma once

#include <optional>

#include "base/clock.h"
#include "plan/spot/optimizer.h"

namespace millrace::experiments::spotserve {

using plan::spot::Candidate;
using plan::spot::OptimizeOptions;
using plan::spot::Profile;
using plan::spot::SearchSpace;

struct RegretRuleOptions {
  OptimizeOptions optimize;
  // Assumed waiting time of a request without capacity. It converts missing throughput to the unit
  // of latency.
  double overload_wait_s = 60;
  // Request-seconds that one instance-second is worth, so that fewer instances count as a gain.
  double instance_weight = 0.02;
  Duration dwell = Duration::Seconds(30);  // minimum time between voluntary changes
};

// Stays with the current configuration until the accumulated regret of staying exceeds the price of
// changing (ski rental: at most twice the cost of knowing the future). Regret shrinks while the
// current configuration is the better one.
class RegretRule {
 public:
  RegretRule(const Profile& profile, const SearchSpace& space, const RegretRuleOptions& options)
      : profile_(profile), space_(space), options_(options) {}

  struct Decision {
    std::optional<Candidate> candidate;  // none: not even one pipeline fits
    bool changed = false;                // differs from the previous decision
    bool forced = false;                 // the previous configuration no longer fits
  };

  // `devices`: usable devices, without those under notice. `switch_s`: how long a change pauses
  // serving (the migration planner's estimate).
  Decision Decide(Time now, int devices, double requests_per_s, double switch_s);

  // From now on the latency includes l_sch (OptimizeOptions::arrival_variation).
  void ExpectVariation(double arrival_variation) {
    options_.optimize.arrival_variation = arrival_variation;
  }

  const std::optional<Candidate>& current() const { return current_; }
  double regret() const { return regret_; }  // request-seconds

 private:
  double CostRate(const Candidate& candidate, double requests_per_s) const;
  Decision Take(Time now, const std::optional<Candidate>& candidate, bool forced);

  Profile profile_;
  SearchSpace space_;
  RegretRuleOptions options_;
  std::optional<Candidate> current_;
  double regret_ = 0;
  Time last_decision_, last_change_;
};

}  // namespace millrace::experiments::spotserve
