#include <gtest/gtest.h>

#include "plan/flow/milp_solver.h"

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

}  // namespace
}  // namespace millrace::plan
