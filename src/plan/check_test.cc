#include "plan/check.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/test_scale.h"
#include "plan/placement_flow.h"
#include "plan/planner.h"
#include "plan/testing_problems.h"

namespace millrace::plan {
namespace {

std::string Joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

testing::AssertionResult Says(const std::vector<std::string>& lines, const std::string& part) {
  if (Joined(lines).find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no line says \"" << part << "\" in:\n" << Joined(lines);
}

// Two nodes of two layers each, one after the other.
FlowProblem TwoNodes() {
  FlowProblem problem;
  problem.cluster = "two";
  problem.model = "m";
  problem.num_layers = 4;
  problem.nodes = {{"a", "g", "", {30, 20}}, {"b", "g", "", {30, 20}}};
  problem.link_tokens_per_s.assign(9, 100);
  return problem;
}

Plan SoundPlan(const FlowProblem& problem) {
  const Placement placement = {{0, 2}, {2, 4}};
  return MakePlan(problem, placement, SolvePlacementFlow(problem, placement), 20);
}

TEST(Check, AcceptsASoundPlan) {
  EXPECT_EQ(Joined(CheckPlan(TwoNodes(), SoundPlan(TwoNodes()))), "");
}

TEST(Check, NamesEveryKindOfViolation) {
  const FlowProblem problem = TwoNodes();
  const struct {
    const char* expected;
    std::function<void(Plan&)> damage;
  } kCases[] = {
      {"the model has 4", [](Plan& p) { p.num_layers = 5; }},
      {"names 0 nodes", [](Plan& p) { p.stages[0].nodes.clear(); }},
      {"on node 7", [](Plan& p) { p.stages[0].nodes = {7}; }},
      {"holds two stages", [](Plan& p) { p.stages[1].nodes = {0}; }},
      {"of a model of 4",
       [](Plan& p) {
         p.stages[1].layers = {3, 5};
       }},
      {"its memory holds 2",
       [](Plan& p) {
         p.stages[1].layers = {1, 4};
       }},
      {"no stage holds layer 2",
       [](Plan& p) {
         p.stages[1].layers = {3, 4};
       }},
      {"a stage that does not exist", [](Plan& p) { p.edges[0].to = 9; }},
      {"listed twice", [](Plan& p) { p.edges.push_back(p.edges[0]); }},
      {"over a link of 100", [](Plan& p) { p.edges[0].tokens_per_s = 200; }},
      {"receives", [](Plan& p) { p.edges[1].tokens_per_s -= 1; }},
      {"can compute 20",
       [](Plan& p) {
         for (auto& e : p.edges) e.tokens_per_s = 25;
       }},
      {"carries nothing", [](Plan& p) { p.edges.clear(); }},
      {"the plan claims 30", [](Plan& p) { p.tokens_per_s = 30; }},
      {"above its own bound", [](Plan& p) { p.tokens_per_s_bound = 10; }},
      {"for prefill only", [](Plan& p) { p.stages[0].role = StageRole::kPrefill; }},
      {"neither used nor unused",
       [](Plan& p) {
         p.stages.pop_back();
         p.edges.clear();
       }},
      {"without a reason",
       [](Plan& p) {
         p.unused.push_back({0, ""});
       }},
      {"unused and used",
       [](Plan& p) {
         p.unused.push_back({0, "why"});
       }},
  };
  for (const auto& c : kCases) {
    Plan plan = SoundPlan(problem);
    c.damage(plan);
    EXPECT_TRUE(Says(CheckPlan(problem, plan), c.expected)) << c.expected;
  }
}

TEST(Check, RefusesRangesThatDoNotFollow) {
  FlowProblem problem = TwoNodes();
  problem.partial_inference = false;
  problem.num_layers = 3;
  Plan plan = SoundPlan(TwoNodes());
  plan.num_layers = 3;
  plan.partial_inference = false;
  plan.stages[1].layers = {1, 3};
  EXPECT_TRUE(Says(CheckPlan(problem, plan), "do not follow"));
}

TEST(Check, RolesNeedAPartnerWithinKvReach) {
  FlowProblem problem = TwoNodes();
  problem.nodes.push_back({"c", "g", "", {30, 20}});
  problem.nodes.push_back({"d", "g", "", {30, 20}});
  problem.link_tokens_per_s.assign(25, 100);
  const Placement placement = {{0, 2}, {2, 4}, {0, 2}, {2, 4}};
  Plan plan = MakePlan(problem, placement, SolvePlacementFlow(problem, placement), 40);
  plan.stages[0].role = plan.stages[1].role = StageRole::kPrefill;
  plan.stages[2].role = plan.stages[3].role = StageRole::kDecode;
  CheckOptions options;
  EXPECT_EQ(Joined(CheckPlan(problem, plan, options)), "");
  options.kv_affinity = {{0, 2}, {1, 3}};
  EXPECT_EQ(Joined(CheckPlan(problem, plan, options)), "");
  options.kv_affinity = {{0, 1}, {2, 3}};
  EXPECT_TRUE(Says(CheckPlan(problem, plan, options), "within KV reach"));
}

// The checker and the planners compute flows with separate code; both must agree.
TEST(Check, AgreesWithTheSolverOnRandomPlacements) {
  const int rounds = 2000 * TestScale();
  for (int round = 0; round < rounds; ++round) {
    const FlowProblem problem =
        RandomProblem(round, {.nodes_max = 9, .link_tokens_per_s = round % 2 ? 400.0 : 0.0});
    if (!ValidateFlowProblem(problem).ok()) continue;
    Rng rng(round + 1);
    const Placement placement = RandomPlacement(problem, rng);
    const PlacementFlow flow = SolvePlacementFlow(problem, placement);
    const Plan plan = MakePlan(problem, placement, flow, flow.tokens_per_s);
    ASSERT_NEAR(RecomputeFlow(problem, plan), flow.tokens_per_s, 1e-6) << "round " << round;
    double cut = 0;
    for (const CutEdge& edge : flow.cut) cut += edge.capacity;
    ASSERT_NEAR(cut, flow.tokens_per_s, 1e-6) << "round " << round;
    if (flow.tokens_per_s > kFlowMin) {
      ASSERT_EQ(Joined(CheckPlan(problem, plan)), "") << "round " << round;
    }
  }
}

}  // namespace
}  // namespace millrace::plan
