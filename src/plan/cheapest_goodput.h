// CheapestGoodput: the machines that answer a requested rate within the latency limits for the
// least money, with or without separate prefill and decode. It leaves out the most expensive
// machines, one after another, while the best plan of the rest still answers the rate. No machine
// of the result can be left out by the estimate; it is not proved that no other set is cheaper.
// Pure except for the given clock; runs on the caller's thread.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "plan/rank_plans.h"

namespace millrace::plan {

struct CheapestGoodputOptions {
  RankOptions first;  // with all machines
  RankOptions trial;  // with one machine less
  // Whether a plan answers the rate, for example in the simulator. A plan for which it returns an
  // error does not. Empty: the estimate decides.
  std::function<Result<bool>(const Plan&)> keeps;
  std::function<bool()> stop;  // no more trials; may be empty
};

// Short searches for the trials.
CheapestGoodputOptions DefaultCheapestOptions();

// `usd_per_hour`: by node. kFailedPrecondition, with the highest rate found, if all machines
// together do not answer `requests_per_s`.
Result<PlanCandidate> CheapestGoodput(const GoodputProblem& problem,
                                      const std::vector<double>& usd_per_hour,
                                      double requests_per_s, const CheapestGoodputOptions& options);

}  // namespace millrace::plan
