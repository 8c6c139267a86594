// RankPlans: the plans that answer most requests per second within the limits: with and without
// separate prefill and decode, and the best single machine. Searches propose candidates by
// estimates, and an evaluator, such as the simulator, ranks them. Pure except for the given clock;
// runs on the caller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/plan.h"
#include "plan/estimate/flow_goodput.h"
#include "plan/roles/role_search.h"

namespace millrace::plan {

struct PlanCandidate {
  Plan plan;
  GoodputEstimate estimate;
  std::string method;           // that found it
  bool single_machine = false;  // the best machine that holds the model alone
  bool roles = false;           // has stages for prefill only
  std::optional<double> score;  // by the evaluator: higher is better
};

struct JudgeHints {
  double most_estimated = 0;  // requests per second of the best candidate, estimated
  double best_score = 0;      // so far, of the plans with roles or of those without
  double best_of_all = 0;     // so far
  double estimated = 0;       // requests per second of this plan
  double stay_s = 0;          // of a request at that rate, estimated; 0: not known
};
// Scores a plan, for example in the simulator. On an error the candidate has no score; an evaluator
// may return one for a plan that is no better than the best so far.
using Evaluator = std::function<Result<double>(const Plan&, const JudgeHints&)>;

struct RankOptions {
  int top = 10;      // candidates given to the evaluator, of different shapes first
  int restarts = 2;  // searches from the best of them; each may give the evaluator one more
  // `seed`, `top`, the clock, the time limit and `progress` of the searches come from here.
  uint64_t seed = 1;
  CandidateOptions colocated;
  RoleSearchOptions roles;
  // The time limit needs both. The searches get the first part of it, the evaluator the rest.
  // Candidates without a score by then rank below those with one. Without a clock the result is a
  // function of the problem, the options and the evaluator.
  const Clock* clock = nullptr;
  std::optional<double> time_limit_s;
  std::function<void(const GoodputProgress&)> progress;
  // Candidates of other searches.
  std::vector<PlanCandidate> others;
};

// Counts for a cluster of so many nodes. At 42 nodes the searches take 4 to 6 s of CPU time. With
// an `effort` below 1 they are about that share of it, and the plans are worse.
RankOptions OptionsFor(int nodes, double effort = 1);

// Different plans, best first: by `evaluator`'s score if there is one, else by the estimate. They
// include the best single machine if one holds the model and meets the limits, so the first is
// never worse than it, and the best estimate with and without roles. Errors as RankByGoodput.
Result<std::vector<PlanCandidate>> RankPlans(const GoodputProblem& problem,
                                             const RankOptions& options,
                                             const Evaluator& evaluator);

bool HasRoles(const Plan& plan);

}  // namespace millrace::plan
