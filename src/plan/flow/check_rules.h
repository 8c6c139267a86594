// The rules of CheckPlan. Internal to it; one thread.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/flow/check.h"

namespace millrace::plan {

// Restates the rules independently: it uses nothing from the solvers.
class PlanChecker {
 public:
  PlanChecker(const FlowProblem& problem, const Plan& plan, const CheckOptions& options)
      : problem_(problem), plan_(plan), options_(options) {}

  std::vector<std::string> Run();

 private:
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    violations_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // check.cc: what the plan names.
  bool CheckHeader();
  bool CheckStages();
  void CheckNodeTogether(int node, const std::vector<int>& stages);
  bool CheckEdges();
  void CheckEdge(const PlanEdge& edge);
  void CheckLayers(const PlanEdge& edge);
  void CheckPhase(const PlanEdge& edge);
  void CheckCoverage();
  void CheckPairs();
  void CheckUnused();

  // check_flows.cc: how much flows.
  void CheckConservation();
  void CheckTime();
  void CheckLinks();
  void CheckHandOvers();
  void CheckBalance();
  void CheckValue();
  // A stage's tokens per second in a phase if it does nothing else.
  double StageRate(const StagePlan& stage, EdgePhase phase) const;
  double Entering(EdgePhase phase) const;

  bool OneClass(int a_node, int b_node) const;
  bool KvReaches(int from_node, int to_node) const;
  bool HandsOver() const;
  std::string EdgeName(const PlanEdge& edge) const;
  int NodeOf(const std::optional<int>& stage) const {
    return stage ? plan_.stages[*stage].nodes.front() : problem_.num_nodes();
  }

  const FlowProblem& problem_;
  const Plan& plan_;
  const CheckOptions& options_;
  std::vector<std::string> violations_;
};

// Whether a stage that holds `after` continues one that holds `before`.
inline bool Adjoin(const LayerRange& before, const LayerRange& after, bool partial) {
  if (!partial) return before.end == after.begin;
  return after.begin <= before.end && before.end < after.end;
}

inline bool Prefills(StageRole role) { return role != StageRole::kDecode; }
inline bool Decodes(StageRole role) { return role != StageRole::kPrefill; }

}  // namespace millrace::plan
