#include "experiments/lib/helix/helix_milp.h"

#include <gtest/gtest.h>

#include "plan/flow/milp_solver.h"
#include "plan/flow/placement_flow.h"
#include "plan/flow/planner.h"
#include "plan/flow/testing_problems.h"

namespace millrace::experiments::helix {
namespace {

// On small clusters the published program, solved to optimality, and the planner agree. The planner
// may do better only by leaving a node empty, which the program cannot.
TEST(HelixMilp, AgreesWithThePlannerOnSmallClusters) {
  const auto solver = plan::MakeCbcSolver();
  int compared = 0;
  for (uint64_t seed = 0; compared < 6; ++seed) {
    ASSERT_LT(seed, 1000u);
    const plan::FlowProblem problem = plan::RandomProblem(
        seed, {.nodes_max = 3, .layers_max = 5, .link_tokens_per_s = seed % 2 ? 400.0 : 0.0});
    if (!plan::ValidateFlowProblem(problem).ok()) continue;
    const auto planned = plan::PlanByFlow(problem, {.iterations = 100'000});
    if (!planned.ok()) continue;
    ++compared;
    for (const bool remove_redundant : {true, false}) {
      const HelixMilpOptions options{.remove_redundant = remove_redundant};
      const HelixMilp milp(problem, options);
      const plan::MilpSolution solution = solver->Solve(milp.program(), {.nodes = 20'000});
      ASSERT_EQ(solution.status, plan::MilpStatus::kOptimal) << "seed " << seed;
      const double flow =
          plan::SolvePlacementFlow(problem, milp.Decode(solution.values)).tokens_per_s;
      EXPECT_NEAR(flow, solution.objective, 1e-3) << "seed " << seed;
      EXPECT_NEAR(flow, planned->flow.tokens_per_s, 1e-3)
          << "seed " << seed << ", partial " << problem.partial_inference;
    }
  }
}

TEST(HelixMilp, PruningKeepsTheIncumbentsLinks) {
  plan::FlowProblem problem;
  problem.num_layers = 4;
  problem.partial_inference = false;
  for (int i = 0; i < 4; ++i) problem.nodes.push_back({"n" + std::to_string(i), "g", "", {10}});
  problem.link_tokens_per_s.assign(25, 100);
  problem.link_tokens_per_s[0 * 5 + 1] = 20;  // the slowest, and the incumbent's
  HelixMilpOptions options{.keep_links = 1};
  const HelixMilp pruned(problem, options);
  EXPECT_EQ(pruned.num_links(), 4);
  options.incumbent = plan::Placement{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const HelixMilp kept(problem, options);
  EXPECT_EQ(kept.num_links(), 7);  // and 0 -> 1, 1 -> 2, 2 -> 3
  const plan::MilpSolution solution = plan::MakeCbcSolver()->Solve(kept.program(), {.nodes = 5000});
  ASSERT_TRUE(solution.has_values());
  EXPECT_NEAR(solution.objective, 10, 1e-4);
}

}  // namespace
}  // namespace millrace::experiments::helix
