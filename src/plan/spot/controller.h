// When to change the configuration: the arrival rate as measured, and hysteresis with the price of
// a change, so that a load around a threshold does not make the cluster reconfigure for ever.
// SpotServe takes both from outside: its released code reads the rate from a flag and changes
// whenever the optimum does.
//
// Pure: times are handed in and must not go back. One thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "plan/spot/optimizer.h"

namespace millrace::plan::spot {

// Requests per second: the greater of a short and a long window's mean, and what the queue needs
// to be served within `drain`.
class RateMeter {
 public:
  struct Options {
    Duration short_window = Duration::Seconds(30);
    Duration long_window = Duration::Seconds(300);
    Duration drain = Duration::Seconds(120);  // the queue should be gone after this
    size_t arrivals_max = 100'000;            // older ones are forgotten
  };

  RateMeter() = default;
  explicit RateMeter(const Options& options) : options_(options) {}

  void Arrive(Time now);
  // Zero before anything arrived. Windows that reach beyond the first arrival end there.
  double RequestsPerSecond(Time now, size_t queue_length);
  // The squared coefficient of variation of the gaps in the long window; 1, as of a Poisson stream,
  // while there are too few to tell.
  double Variation() const;

 private:
  Options options_;
  std::deque<Time> arrivals_;
  std::optional<Time> first_;
};

struct ControllerOptions {
  OptimizeOptions optimize;
  // Seconds a request is thought to wait when nobody has the capacity for it: what turns missing
  // throughput into the same unit as latency.
  double overload_wait_s = 60;
  // Request-seconds that one instance-second is worth: what makes a smaller fleet a gain.
  double instance_weight = 0.02;
  Duration dwell = Duration::Seconds(30);  // no change of free will sooner than this after another
};

// Chooses, and stays until the accumulated regret of staying exceeds the price of going
// (ski rental: at worst twice the cost of knowing the future). Regret shrinks again while the
// present configuration is the better one.
class Controller {
 public:
  Controller(const Profile& profile, const SearchSpace& space, const ControllerOptions& options)
      : profile_(profile), space_(space), options_(options) {}

  struct Decision {
    std::optional<Candidate> candidate;  // none: not even one pipeline fits
    bool changed = false;                // from the one before
    bool forced = false;                 // the one before no longer fits
  };

  // `devices`: those that can be used, without those under notice. `switch_s`: how long serving
  // pauses for a change (the migration planner's estimate).
  Decision Decide(Time now, int devices, double requests_per_s, double switch_s);

  // From now on l_sch is part of the latency (OptimizeOptions::arrival_variation).
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
