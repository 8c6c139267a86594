// Portfolio: the incumbent, the bound and the budget that the planner's methods share. Lives during
// one call of the planner, on its thread.
#pragma once

#include <string>
#include <string_view>

#include "plan/flow/planner.h"

namespace millrace::plan {

class Portfolio {
 public:
  Portfolio(const FlowProblem& problem, const PlanOptions& options);

  const FlowProblem& problem() const { return problem_; }
  const PlanOptions& options() const { return options_; }
  double best() const { return best_.tokens_per_s; }
  const Placement& placement() const { return placement_; }
  double bound() const { return bound_; }

  // Evaluates `placement` with every link, keeps it if it is better, and returns its flow.
  // REQUIRES: a valid placement.
  double Offer(std::string_view method, const Placement& placement);
  // Takes a proved upper bound; keeps it if it is lower.
  void OfferBound(std::string_view method, double bound);
  // Whether the incumbent is proved optimal.
  bool Proved() const;

  // Seconds until the limit. None: no limit.
  std::optional<double> SecondsLeft() const;
  bool OutOfTime() const;
  int64_t iterations() const { return iterations_; }
  // The number of the next restart of the local search: 0, 1, 2, ...
  int NextRestart() { return restarts_++; }
  void CountIterations(int64_t count) { iterations_ += count; }
  void Report(std::string_view method) const;

  PlanOutcome Finish() const;

 private:
  double Elapsed() const;

  const FlowProblem& problem_;
  const PlanOptions& options_;
  Time start_;
  Placement placement_;
  PlacementFlow best_;
  std::string best_method_ = "none", bound_method_;
  double bound_ = 0;
  int64_t iterations_ = 0;
  int restarts_ = 0;
  std::vector<MethodResult> methods_;
};

}  // namespace millrace::plan
