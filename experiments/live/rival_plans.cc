// rival_plans CLUSTER MODEL WORKLOAD FOLDER: writes the plans that experiments/live compares ours
// with, for the machines of a cluster file: even.yaml, one chain with the same number of layers on
// each node; swarm.yaml, Swarm's equal stages; single.yaml, the whole model on the fastest node.
// A plan that the machines' memory does not hold is not written; a line says why.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "apps/plan/inputs.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/flow/baselines.h"
#include "plan/flow/placement_flow.h"
#include "plan/flow/planner.h"
#include "plan/io/plan_yaml.h"

namespace millrace::experiments {
namespace {

using plan::FlowProblem;
using plan::Placement;

// The nodes of a region one after the other, so that few routes cross to another.
Placement EvenChain(const FlowProblem& problem) {
  const int nodes = problem.num_nodes(), layers = problem.num_layers;
  std::vector<int> order(static_cast<size_t>(nodes));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&](int i) -> const std::string& { return problem.nodes[i].region; });
  Placement placement(nodes);
  for (int k = 0; k < nodes; ++k) {
    placement[order[static_cast<size_t>(k)]] = {layers * k / nodes, layers * (k + 1) / nodes};
  }
  return placement;
}

std::optional<Placement> FastestAlone(const FlowProblem& problem) {
  const int layers = problem.num_layers;
  std::optional<int> best;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() < layers) continue;
    if (!best || problem.nodes[i].TokensPerS(layers) > problem.nodes[*best].TokensPerS(layers)) {
      best = i;
    }
  }
  if (!best) return std::nullopt;
  Placement placement(problem.num_nodes());
  placement[*best] = {0, layers};
  return placement;
}

bool Fits(const FlowProblem& problem, const Placement& placement) {
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (placement[i].size() > problem.nodes[i].max_layers()) return false;
  }
  return true;
}

Status WritePlan(const apps::PlanInputs& inputs, const std::optional<Placement>& placement,
                 const std::string& folder, const std::string& name) {
  if (!placement || !Fits(inputs.problem, *placement)) {
    fmt::print("{}: the machines' memory does not hold it\n", name);
    return OkStatus();
  }
  const plan::PlacementFlow flow = SolvePlacementFlow(inputs.problem, *placement);
  const Plan plan = MakePlan(inputs.problem, *placement, flow, flow.tokens_per_s);
  MR_RETURN_IF_ERROR(WriteFileAtomically(folder + "/" + name + ".yaml",
                                         plan::WritePlanYaml(plan, inputs.cluster)));
  fmt::print("{}: {:.1f} tokens/s of flow on {} nodes\n", name, flow.tokens_per_s,
             plan.stages.size());
  return OkStatus();
}

Status Run(const apps::PlanInputFlags& flags, const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const apps::PlanInputs inputs, apps::LoadPlanInputs(flags));
  MR_RETURN_IF_ERROR(WritePlan(inputs, EvenChain(inputs.problem), folder, "even"));
  MR_RETURN_IF_ERROR(WritePlan(inputs, SwarmPlacement(inputs.problem), folder, "swarm"));
  return WritePlan(inputs, FastestAlone(inputs.problem), folder, "single");
}

}  // namespace
}  // namespace millrace::experiments

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: rival_plans CLUSTER MODEL WORKLOAD FOLDER\n");
    return 2;
  }
  MR_CHECK(millrace::InitLog("warning").ok());
  millrace::apps::PlanInputFlags flags;
  flags.cluster = argv[1];
  flags.model = argv[2];
  flags.workload = argv[3];
  flags.partial = false;
  const millrace::Status done = millrace::experiments::Run(flags, argv[4]);
  if (!done.ok()) fmt::print(stderr, "rival_plans: {}\n", done.message());
  return done.ok() ? 0 : 1;
}
