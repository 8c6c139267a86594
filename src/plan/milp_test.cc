#include <gtest/gtest.h>

#include "plan/aggregated_program.h"
#include "plan/helix_milp.h"
#include "plan/milp_solver.h"
#include "plan/placement_flow.h"
#include "plan/planner.h"
#include "plan/testing_problems.h"

namespace millrace::plan {
namespace {

TEST(CbcSolver, SolvesAKnapsackAndSaysWhatCannotBe) {
  LinearProgram program;
  const int a = program.AddColumn({.upper = 1, .objective = 10, .integer = true});
  const int b = program.AddColumn({.upper = 1, .objective = 13, .integer = true});
  const int c = program.AddColumn({.upper = 1, .objective = 7, .integer = true});
  program.AtMost(5, {{a, 3}, {b, 4}, {c, 2}});
  const auto solver = MakeCbcSolver();
  MilpSolution solution = solver->Solve(program, {});
  EXPECT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_NEAR(solution.objective, 17, 1e-6);
  EXPECT_NEAR(solution.bound, 17, 1e-6);
  program.AtLeast(3, {{a, 1}, {b, 1}});
  EXPECT_EQ(solver->Solve(program, {}).status, MilpStatus::kInfeasible);
}

TEST(CbcSolver, SolvesAProgramWithoutIntegers) {
  LinearProgram program;
  const int x = program.AddColumn({.objective = 1});
  const int y = program.AddColumn({.objective = 1});
  program.AtMost(4, {{x, 1}, {y, 2}});
  program.AtMost(6, {{x, 3}, {y, 1}});
  const MilpSolution solution = MakeCbcSolver()->Solve(program, {});
  EXPECT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_NEAR(solution.objective, 2.8, 1e-6);
}

// On small clusters the published program, solved to optimality, and the planner agree. The planner
// may do better only by leaving a node empty, which the program cannot.
TEST(HelixMilp, AgreesWithThePlannerOnSmallClusters) {
  const auto solver = MakeCbcSolver();
  int compared = 0;
  for (uint64_t seed = 0; compared < 6; ++seed) {
    ASSERT_LT(seed, 1000u);
    const FlowProblem problem = RandomProblem(
        seed, {.nodes_max = 3, .layers_max = 5, .link_tokens_per_s = seed % 2 ? 400.0 : 0.0});
    if (!ValidateFlowProblem(problem).ok()) continue;
    const auto planned = PlanByFlow(problem, {.iterations = 100'000});
    if (!planned.ok()) continue;
    ++compared;
    for (const bool remove_redundant : {true, false}) {
      const HelixMilpOptions options{.remove_redundant = remove_redundant};
      const HelixMilp milp(problem, options);
      const MilpSolution solution = solver->Solve(milp.program(), {.nodes = 20'000});
      ASSERT_EQ(solution.status, MilpStatus::kOptimal) << "seed " << seed;
      const double flow = SolvePlacementFlow(problem, milp.Decode(solution.values)).tokens_per_s;
      EXPECT_NEAR(flow, solution.objective, 1e-3) << "seed " << seed;
      EXPECT_NEAR(flow, planned->flow.tokens_per_s, 1e-3)
          << "seed " << seed << ", partial " << problem.partial_inference;
    }
  }
}

TEST(HelixMilp, PruningKeepsTheIncumbentsLinks) {
  FlowProblem problem;
  problem.num_layers = 4;
  problem.partial_inference = false;
  for (int i = 0; i < 4; ++i) problem.nodes.push_back({"n" + std::to_string(i), "g", "", {10}});
  problem.link_tokens_per_s.assign(25, 100);
  problem.link_tokens_per_s[0 * 5 + 1] = 20;  // the slowest, and the incumbent's
  HelixMilpOptions options{.keep_links = 1};
  const HelixMilp pruned(problem, options);
  EXPECT_EQ(pruned.num_links(), 4);
  options.incumbent = Placement{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const HelixMilp kept(problem, options);
  EXPECT_EQ(kept.num_links(), 7);  // and 0 -> 1, 1 -> 2, 2 -> 3
  const MilpSolution solution = MakeCbcSolver()->Solve(kept.program(), {.nodes = 5000});
  ASSERT_TRUE(solution.has_values());
  EXPECT_NEAR(solution.objective, 10, 1e-4);
}

}  // namespace
}  // namespace millrace::plan
