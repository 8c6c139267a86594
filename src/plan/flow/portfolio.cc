#include "plan/flow/portfolio.h"

#include <algorithm>

#include "plan/flow/flow_bounds.h"

namespace millrace::plan {

Portfolio::Portfolio(const FlowProblem& problem, const PlanOptions& options)
    : problem_(problem), options_(options), placement_(problem.num_nodes()) {
  if (options_.clock) start_ = options_.clock->Now();
  best_.node_tokens_per_s.assign(problem.num_nodes(), 0);
  bound_ = SelfConsistentBound(problem);
  bound_method_ = "self-consistent bound";
}

double Portfolio::Offer(std::string_view method, const Placement& placement) {
  PlacementFlow flow = SolvePlacementFlow(problem_, placement);
  const double value = flow.tokens_per_s;
  const auto entry = std::find_if(methods_.begin(), methods_.end(),
                                  [&](const MethodResult& m) { return m.method == method; });
  if (entry == methods_.end()) {
    methods_.push_back({std::string(method), value});
  } else {
    entry->tokens_per_s = std::max(entry->tokens_per_s, value);
  }
  if (value > best_.tokens_per_s * (1 + kFlowTolerance)) {
    best_ = std::move(flow);
    placement_ = placement;
    best_method_ = method;
    Report(method);
  }
  return value;
}

void Portfolio::OfferBound(std::string_view method, double bound) {
  if (bound >= bound_) return;
  bound_ = std::max(bound, best_.tokens_per_s);
  bound_method_ = method;
  Report(method);
}

bool Portfolio::Proved() const { return best_.tokens_per_s >= bound_ * (1 - kProvedGap); }

double Portfolio::Elapsed() const {
  return options_.clock ? (options_.clock->Now() - start_).seconds() : 0;
}

std::optional<double> Portfolio::SecondsLeft() const {
  if (!options_.clock || !options_.time_limit_s) return std::nullopt;
  return std::max(0.0, *options_.time_limit_s - Elapsed());
}

bool Portfolio::OutOfTime() const {
  const auto left = SecondsLeft();
  return left && *left <= 0;
}

void Portfolio::Report(std::string_view method) const {
  if (!options_.progress) return;
  options_.progress({.method = std::string(method),
                     .tokens_per_s = best_.tokens_per_s,
                     .bound = bound_,
                     .elapsed_s = Elapsed()});
}

PlanOutcome Portfolio::Finish() const {
  PlanOutcome outcome;
  outcome.placement = placement_;
  outcome.flow = best_;
  outcome.bound = std::max(bound_, best_.tokens_per_s);
  outcome.bound_method = bound_method_;
  outcome.method = best_method_;
  outcome.methods = methods_;
  outcome.iterations = iterations_;
  outcome.elapsed_s = Elapsed();
  outcome.plan = MakePlan(problem_, placement_, best_, outcome.bound);
  return outcome;
}

}  // namespace millrace::plan
