// The search for the plan with the best goodput, and what a person is told about it: the best plans
// with and without separate prefill and decode, and why one of them won. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plan/inputs.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "plan/flow/planner.h"
#include "plan/rank_plans.h"

namespace millrace::apps {

struct GoodputSearchOptions {
  LatencyLimits limits;
  uint64_t seed = 1;
  // Null: no time limit; the answer is a function of the inputs. SearchCheapest needs one.
  const Clock* clock = nullptr;
  double time_limit_s = 10;
  double effort = 1;     // as plan::OptionsFor
  bool survive = false;  // the goodput after the loss of any one node: a spot node if there are any
  std::function<void(const plan::GoodputProgress&)> progress;
  plan::Evaluator judge;  // empty: the estimates decide
  // Candidates of other searches.
  std::vector<plan::PlanCandidate> others;
};

struct GoodputAnswer {
  std::vector<plan::PlanCandidate> ranked;  // the best first
  double bound = 0;                         // tokens per second
  bool cheapest = false;                    // it answers a given rate; there are no others
  const plan::PlanCandidate& best() const { return ranked.front(); }
  // The best with roles, or without. Null: none keeps the limits.
  const plan::PlanCandidate* Best(bool roles) const;
};

// kFailedPrecondition if no plan keeps the limits; the message has the fastest plan's latencies.
// REQUIRES: inputs.goodput.
Result<GoodputAnswer> SearchGoodput(const PlanInputs& inputs, const GoodputSearchOptions& options);

// The plan that answers `requests_per_s` for the least money; `usd_per_hour` is by node. `keeps`
// says whether a plan answers the rate; empty: the estimate decides. As SearchGoodput.
Result<GoodputAnswer> SearchCheapest(const PlanInputs& inputs, const GoodputSearchOptions& options,
                                     const std::vector<double>& usd_per_hour, double requests_per_s,
                                     std::function<Result<bool>(const Plan&)> keeps);

// The best candidate in the form of the other objectives.
plan::PlanOutcome OutcomeOf(const GoodputAnswer& answer);

// The estimate of a placement whose stages both prefill and decode, in one line.
std::string EstimateText(const PlanInputs& inputs, const plan::PlanOutcome& outcome);
// The estimate, the simulated rate, and the comparison of plans with and without roles.
std::string GoodputText(const GoodputAnswer& answer, const GoodputSearchOptions& options,
                        const ClusterSpec& cluster);
// "goodput" of the JSON output.
Json GoodputJson(const GoodputAnswer& answer);

}  // namespace millrace::apps
