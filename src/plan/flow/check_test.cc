#include "plan/flow/check.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/testing/test_scale.h"
#include "plan/flow/placement_flow.h"
#include "plan/flow/planner.h"
#include "plan/flow/testing_problems.h"

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
      {"the 2 stages of node a hold 4 layers", [](Plan& p) { p.stages[1].nodes = {0}; }},
      {"spread over 2 devices", [](Plan& p) { p.stages[1].tensor_parallel = 2; }},
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

TEST(Check, ActivationsStayInTheirNumericClass) {
  CheckOptions options{.numeric_classes = {"x86", ""}};
  EXPECT_EQ(Joined(CheckPlan(TwoNodes(), SoundPlan(TwoNodes()), options)), "");
  options.numeric_classes = {"x86", "arm"};
  EXPECT_TRUE(Says(CheckPlan(TwoNodes(), SoundPlan(TwoNodes()), options),
                   "moves activations from node a to node b, which are of different numeric"));
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

// Prompts enter at a, are handed over to b and c, which hold half of the layers each.
struct Apart {
  FlowProblem problem = TwoNodes();
  Plan plan;
  CheckOptions options{.prompt_tokens = 6, .output_tokens = 2};

  Apart() {
    problem.partial_inference = false;
    problem.kv_layer_tokens = 2;
    problem.nodes = {{"a", "g", "", {40, 30, 20, 10}, {40, 30, 20, 12}, {8, 6, 5, 4}},
                     {"b", "g", "", {30, 20}, {30, 20}, {8, 6}},
                     {"c", "g", "", {30, 20}, {30, 20}, {8, 6}}};
    problem.link_tokens_per_s.assign(16, 100);
    plan.num_layers = 4;
    plan.partial_inference = false;
    plan.stages = {{.nodes = {0}, .layers = {0, 4}, .role = StageRole::kPrefill},
                   {.nodes = {1}, .layers = {0, 2}, .role = StageRole::kDecode},
                   {.nodes = {2}, .layers = {2, 4}, .role = StageRole::kDecode}};
    const std::optional<int> end;
    plan.edges = {{end, 0, 12, EdgePhase::kPrefill}, {0, end, 12, EdgePhase::kPrefill},
                  {0, 1, 12, EdgePhase::kHandOver},  {0, 2, 12, EdgePhase::kHandOver},
                  {end, 1, 4, EdgePhase::kDecode},   {1, 2, 4, EdgePhase::kDecode},
                  {2, end, 4, EdgePhase::kDecode}};
    plan.tokens_per_s = 16;
    plan.tokens_per_s_bound = 20;
  }
};

TEST(Check, AcceptsASoundPlanWithRoles) {
  const Apart apart;
  EXPECT_EQ(Joined(CheckPlan(apart.problem, apart.plan, apart.options)), "");
  // 12 prompt tokens/s are two requests, and 6 output tokens/s three.
  EXPECT_NEAR(RecomputeFlow(apart.problem, apart.plan, apart.options), 16, 1e-9);
}

// A stage that does both for other requests adds its own rate once, and none to the phases.
TEST(Check, AStageOfBothRolesCountsInItsOwnFlowOnly) {
  Apart apart;
  const auto node = static_cast<int>(apart.problem.nodes.size());
  apart.problem.nodes.push_back(
      {"d", "g", "", {40, 30, 20, 10}, {400, 300, 200, 120}, {8, 6, 5, 4}});
  apart.problem.link_tokens_per_s.assign(25, 100);
  const auto stage = static_cast<int>(apart.plan.stages.size());
  apart.plan.stages.push_back({.nodes = {node}, .layers = {0, 4}});
  const std::optional<int> end;
  apart.plan.edges.push_back({end, stage, 10, EdgePhase::kBoth});
  apart.plan.edges.push_back({stage, end, 10, EdgePhase::kBoth});
  apart.plan.tokens_per_s = apart.plan.tokens_per_s_bound = 26;
  EXPECT_EQ(Joined(CheckPlan(apart.problem, apart.plan, apart.options)), "");
  EXPECT_NEAR(RecomputeFlow(apart.problem, apart.plan, apart.options), 16 + 10, 1e-9);
}

TEST(Check, NamesEveryKindOfViolationOfRoles) {
  const auto scale = [](Plan& p, double by) {
    for (PlanEdge& edge : p.edges) edge.tokens_per_s *= by;
    p.tokens_per_s *= by;
  };
  const struct {
    const char* expected;
    std::function<void(Apart&)> damage;
  } kCases[] = {
      {"edge stage 0 -> stage 1 (hand-over) meets stage 1, whose role is prefill",
       [](Apart& a) { a.plan.stages[1].role = StageRole::kPrefill; }},
      {"meets stage 0, whose role is decode",
       [](Apart& a) { a.plan.stages[0].role = StageRole::kDecode; }},
      {"meets stage 0, whose role is prefill",
       [](Apart& a) { a.plan.edges[0].phase = EdgePhase::kBoth; }},
      {"hands KV over to or from the coordinator",
       [](Apart& a) { a.plan.edges[3].to = std::nullopt; }},
      {"receives 12 tokens/s and sends 11 of prompts",
       [](Apart& a) { a.plan.edges[1].tokens_per_s = 11; }},
      {"receives 4 tokens/s and sends 3 of outputs",
       [](Apart& a) { a.plan.edges[5].tokens_per_s = 3; }},
      {"the KV of layer 2 is handed over at 6 tokens/s and prompts come at 12",
       [](Apart& a) { a.plan.edges[3].tokens_per_s = 6; }},
      {"the KV of layer 0 is handed over at 0",
       [](Apart& a) { a.plan.edges.erase(a.plan.edges.begin() + 2); }},
      {"the KV of layer 0 is handed over at 13",
       [](Apart& a) { a.plan.edges[2].tokens_per_s = 13; }},
      {"hands over the KV of layers [0, 2) to a stage that holds [2, 4)",
       [](Apart& a) {
         a.plan.stages[0].layers = {0, 2};
       }},
      {"a -> b carries 48 tokens/s over a link of 40",
       [](Apart& a) { a.problem.link_tokens_per_s[1] = 40; }},
      {"stage 0 carries 24 tokens/s and can compute 12",
       [&](Apart& a) {
         scale(a.plan, 2);
         a.plan.tokens_per_s_bound = 40;
       }},
      {"requests/s are prefilled and",
       [](Apart& a) {
         for (int e : {4, 5, 6}) a.plan.edges[static_cast<size_t>(e)].tokens_per_s = 3;
         a.plan.tokens_per_s = 15;
       }},
      {"a request needs both",
       [](Apart& a) {
         a.plan.edges.resize(4);
         a.plan.tokens_per_s = 12;
       }},
      {"different groups of kv_affinity",
       [](Apart& a) {
         a.options.kv_affinity = {{0, 1}, {2}};
       }},
      {"different groups of kv_affinity or numeric classes",
       [](Apart& a) {
         a.options.numeric_classes = {"avx2", "avx2", "neon"};
       }},
      {"the rates of each phase are not known",
       [](Apart& a) { a.problem.nodes[0].prefill_tokens_per_s.clear(); }},
      {"above its own bound", [](Apart& a) { a.plan.tokens_per_s_bound = 10; }},
  };
  for (const auto& c : kCases) {
    Apart apart;
    c.damage(apart);
    EXPECT_TRUE(Says(CheckPlan(apart.problem, apart.plan, apart.options), c.expected))
        << c.expected;
  }
}

// Prefill and decode on one node share its only device, or divide its devices.
TEST(Check, StagesOfOneNodeShareItsMemoryAndItsTime) {
  FlowProblem problem = TwoNodes();
  problem.num_layers = 2;
  problem.nodes = {{"a", "g", "", {40, 30}, {40, 30}, {40, 30}}};
  problem.link_tokens_per_s.assign(4, 100);
  Plan plan;
  plan.num_layers = 2;
  plan.stages = {{.nodes = {0}, .layers = {0, 2}, .role = StageRole::kPrefill},
                 {.nodes = {0}, .layers = {0, 2}, .role = StageRole::kDecode}};
  const std::optional<int> end;
  plan.edges = {{end, 0, 20, EdgePhase::kPrefill},
                {0, end, 20, EdgePhase::kPrefill},
                {0, 1, 20, EdgePhase::kHandOver},
                {end, 1, 20, EdgePhase::kDecode},
                {1, end, 20, EdgePhase::kDecode}};
  plan.tokens_per_s = plan.tokens_per_s_bound = 40;
  EXPECT_TRUE(Says(CheckPlan(problem, plan), "the 2 stages of node a hold 4 layers together"));
  problem.num_layers = plan.num_layers = 1;
  problem.nodes = {{"a", "g", "", {40}, {40}, {40}}};
  problem.nodes[0].room_layers = 2;
  plan.stages[0].layers = plan.stages[1].layers = {0, 1};
  EXPECT_EQ(Joined(CheckPlan(problem, plan)), "");  // 20 of 40 each
  for (PlanEdge& edge : plan.edges) edge.tokens_per_s = 25;
  plan.tokens_per_s = plan.tokens_per_s_bound = 50;
  EXPECT_TRUE(Says(CheckPlan(problem, plan), "the stages of node a need 1.25 times its time"));
  problem.nodes[0].devices = 2;  // one each, with half of the node's rate
  EXPECT_TRUE(Says(CheckPlan(problem, plan), "can compute 20"));
  plan.stages[0].tensor_parallel = 2;
  EXPECT_TRUE(Says(CheckPlan(problem, plan), "take 3 devices and it has 2"));
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
