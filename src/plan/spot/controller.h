// When to change the configuration: the measured arrival rate, and hysteresis with the price of a
// change, so that a load near a threshold does not cause constant reconfiguration. SpotServe has
// neither: its released code reads the rate from a flag and changes whenever the optimum does.
//
// Pure: times are arguments and must not go back. One thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "plan/spot/optimizer.h"

namespace millrace::plan::spot {

// Requests per second: the greater mean of a short and a long window, plus the rate that empties
// the queue within `drain`.
class RateMeter {
 public:
  struct Options {
    Duration short_window = Duration::Seconds(30);
    Duration long_window = Duration::Seconds(300);
    Duration drain = Duration::Seconds(120);  // time in which the queue should empty
    size_t arrivals_max = 100'000;            // older ones are forgotten
  };

  RateMeter() = default;
  explicit RateMeter(const Options& options) : options_(options) {}

  void Arrive(Time now);
  // Zero before the first arrival. Windows end at the first arrival.
  double RequestsPerSecond(Time now, size_t queue_length);
  // The squared coefficient of variation of the gaps in the long window. With too few gaps it is 1,
  // as for a Poisson stream.
  double Variation() const;

 private:
  Options options_;
  std::deque<Time> arrivals_;
  std::optional<Time> first_;
};

struct ControllerOptions {
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
class Controller {
 public:
  Controller(const Profile& profile, const SearchSpace& space, const ControllerOptions& options)
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
  ControllerOptions options_;
  std::optional<Candidate> current_;
  double regret_ = 0;
  Time last_decision_, last_change_;
};

}  // namespace millrace::plan::spot
