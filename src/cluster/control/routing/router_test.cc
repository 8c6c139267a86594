#include "cluster/control/routing/router.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::cluster {
namespace {

constexpr int64_t kAmple = int64_t{1} << 40;
constexpr auto kPrompts = EdgePhase::kPrefill, kKv = EdgePhase::kHandOver,
               kAnswers = EdgePhase::kDecode;

// Layer 0 on stages 0 and 1, layer 1 on stages 2, 3 and 4; flows all different.
Plan TwoByThree() {
  Plan plan;
  plan.num_layers = 2;
  plan.tokens_per_s = 100;
  plan.stages = {{.nodes = {0}, .layers = {0, 1}},
                 {.nodes = {1}, .layers = {0, 1}},
                 {.nodes = {2}, .layers = {1, 2}},
                 {.nodes = {3}, .layers = {1, 2}},
                 {.nodes = {4}, .layers = {1, 2}}};
  plan.edges = {{std::nullopt, 0, 70},
                {std::nullopt, 1, 30},
                {0, 2, 40},
                {0, 3, 25},
                {0, 4, 5},
                {1, 3, 10},
                {1, 4, 20},
                {2, std::nullopt, 40},
                {3, std::nullopt, 35},
                {4, std::nullopt, 25}};
  return plan;
}

// Unlike machines in every role at once, for prompts of 300 tokens and answers of 100: two prefill
// stages, a decode stage of all layers beside two in a row, and one machine for both. 3 requests
// of 4 are handed over.
Plan AllRoles() {
  using enum StageRole;
  Plan plan;
  plan.num_layers = 4;
  plan.tokens_per_s = 400;
  plan.stages = {{.nodes = {0}, .layers = {0, 4}, .role = kPrefill},
                 {.nodes = {1}, .layers = {0, 4}, .role = kPrefill},
                 {.nodes = {2}, .layers = {0, 4}, .role = kDecode},
                 {.nodes = {3}, .layers = {0, 2}, .role = kDecode},
                 {.nodes = {4}, .layers = {2, 4}, .role = kDecode},
                 {.nodes = {5}, .layers = {0, 4}, .role = kBoth}};
  plan.edges = {{std::nullopt, 0, 150, kPrompts},
                {0, std::nullopt, 150, kPrompts},
                {std::nullopt, 1, 75, kPrompts},
                {1, std::nullopt, 75, kPrompts},
                {std::nullopt, 2, 50, kAnswers},
                {2, std::nullopt, 50, kAnswers},
                {std::nullopt, 3, 25, kAnswers},
                {3, 4, 25, kAnswers},
                {4, std::nullopt, 25, kAnswers},
                {std::nullopt, 5, 100},
                {5, std::nullopt, 100},
                {0, 2, 150, kKv},
                {1, 3, 75, kKv},
                {1, 4, 75, kKv}};
  return plan;
}

// A router and naive reservations.
class Routed {
 public:
  explicit Routed(const Plan& plan, int64_t kv = kAmple, bool queues = false)
      : layout_(MakeLayout(plan, {}).value()),
        router_(layout_),
        rooms_(plan.stages.size(), {.up = true, .token_layers = kv, .queues = queues}),
        tokens_(layout_.plan.edges.size()) {}

  static RouteNeed Need(int64_t prompt, int64_t answer = 0) {
    return {.prompt = true,
            .prompt_kv = prompt,
            .all_kv = prompt + answer,
            .prompt_work = prompt,
            .answer_work = answer};
  }
  std::optional<Walk> Choose(const RouteNeed& need) { return router_.Choose(need, rooms_); }
  std::optional<Walk> Take(const RouteNeed& need) {
    std::optional<Walk> walk = Choose(need);
    if (!walk) return walk;
    router_.Charge(*walk, need);
    Count(*walk, need);
    Reserve(*walk, need, 1);
    return walk;
  }
  void Release(const Walk& walk, const RouteNeed& need) { Reserve(walk, need, -1); }
  StageRoom& room(int stage) { return rooms_[static_cast<size_t>(stage)]; }
  Router& router() { return router_; }
  // Along the walks that were taken, by edge of the plan.
  double tokens(size_t edge) const { return tokens_[edge]; }
  const Plan& plan() const { return layout_.plan; }

 private:
  void Reserve(const Walk& walk, const RouteNeed& need, int sign) {
    const int64_t kv = walk.role == StageRole::kPrefill ? need.prompt_kv : need.all_kv;
    for (const Hop& hop : walk.route) room(hop.stage).token_layers -= sign * kv * hop.layers.size();
  }

  void Count(const Walk& walk, const RouteNeed& need) {
    const bool prompt = walk.role != StageRole::kDecode, answer = walk.role != StageRole::kPrefill;
    const EdgePhase phase = prompt && answer ? EdgePhase::kBoth : prompt ? kPrompts : kAnswers;
    std::optional<int> from;
    for (size_t i = 0; i <= walk.route.size(); ++i) {
      const auto to = i < walk.route.size() ? std::optional(walk.route[i].stage) : std::nullopt;
      for (size_t e = 0; e < tokens_.size(); ++e) {
        const PlanEdge& edge = plan().edges[e];
        if (edge.from != from || edge.to != to || edge.phase != phase) continue;
        tokens_[e] +=
            static_cast<double>((prompt ? need.prompt_work : 0) + (answer ? need.answer_work : 0));
      }
      from = to;
    }
  }

  Layout layout_;
  Router router_;
  std::vector<StageRoom> rooms_;
  std::vector<double> tokens_;
};

TEST(Router, SharesFollowTheFlowWithinOnePercent) {
  Routed routed(TwoByThree());
  constexpr int kRequests = 10'000;
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(routed.Take(Routed::Need(100)));
  for (size_t e = 0; e < routed.plan().edges.size(); ++e) {
    const double share = routed.tokens(e) / (100.0 * kRequests);
    EXPECT_NEAR(share, routed.plan().edges[e].tokens_per_s / 100, 0.01) << "edge " << e;
  }
}

// The same where prompts, answers and both have edges of their own (DistServe section 4.3 and
// Helix section 5 in one plan). The KV of each prompt stays in reach.
TEST(Router, SharesOfEveryPhaseFollowTheFlowWithinOnePercent) {
  Routed routed(AllRoles());
  constexpr int kRequests = 20'000;
  int handed_over = 0;
  Rng rng(1);
  for (int i = 0; i < kRequests; ++i) {
    RouteNeed need = Routed::Need(rng.Between(1, 599), rng.Between(1, 199));
    const auto walk = routed.Take(need);
    ASSERT_TRUE(walk);
    if (walk->role == StageRole::kBoth) continue;
    ASSERT_EQ(walk->role, StageRole::kPrefill);
    ++handed_over;
    need.prompt = false;
    need.kv_at = &walk->route;
    const auto decode = routed.Take(need);
    ASSERT_TRUE(decode);
    ASSERT_EQ(decode->role, StageRole::kDecode);
    ASSERT_EQ(decode->route.front().stage, walk->route.front().stage == 0 ? 2 : 3);
  }
  EXPECT_NEAR(handed_over, 0.75 * kRequests, 0.01 * kRequests);
  const double tokens = 400.0 * kRequests;
  for (size_t e = 0; e < routed.plan().edges.size(); ++e) {
    const PlanEdge& edge = routed.plan().edges[e];
    if (edge.phase == kKv) continue;
    EXPECT_NEAR(routed.tokens(e) / tokens, edge.tokens_per_s / 400, 0.01) << "edge " << e;
  }
}

TEST(Router, NoBurstInAnyWindow) {
  Routed routed(TwoByThree());
  constexpr int kRequests = 10'000, kWindow = 100;
  std::vector<std::vector<int>> seen(5);  // by stage: the requests that went there
  for (int i = 0; i < kRequests; ++i) {
    const auto walk = routed.Take(Routed::Need(100));
    ASSERT_TRUE(walk);
    for (const Hop& hop : walk->route) seen[static_cast<size_t>(hop.stage)].push_back(i);
  }
  constexpr std::array kShares = {0.70, 0.30, 0.40, 0.35, 0.25};
  for (size_t s = 0; s < 5; ++s) {
    for (size_t first = 0, last = 0; last < seen[s].size(); ++last) {
      while (seen[s][last] - seen[s][first] >= kWindow) ++first;
      ASSERT_LE(static_cast<double>(last - first + 1), 2 * kShares[s] * kWindow) << "stage " << s;
    }
  }
}

TEST(Router, AStageThatIsUpAgainGetsNoBurst) {
  Routed routed(TwoByThree());
  routed.room(1).up = false;
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(routed.Take(Routed::Need(100)));
  routed.room(1).up = true;
  int through = 0;
  for (int i = 0; i < 100; ++i) {
    through += routed.Take(Routed::Need(100))->route.front().stage == 1;
  }
  EXPECT_NEAR(through, 30, 2);
}

TEST(Router, PartialHopsRunAndChargeOnlyTheirLayers) {
  Plan plan;
  plan.num_layers = 8;
  plan.stages = {{.nodes = {0}, .layers = {0, 4}}, {.nodes = {1}, .layers = {0, 8}}};
  plan.edges = {{std::nullopt, 0, 10}, {0, 1, 10}, {1, std::nullopt, 10}};
  Routed routed(plan, 400);
  const auto walk = routed.Take(Routed::Need(100));
  ASSERT_TRUE(walk) << "the second stage holds eight layers and runs four";
  ASSERT_EQ(walk->route.size(), 2u);
  EXPECT_EQ(walk->route[1].layers, (LayerRange{4, 8}));
  EXPECT_FALSE(routed.Choose(Routed::Need(1)));
}

TEST(Router, AvoidsDeadEnds) {
  // Stage 0 leads only to stage 2, which is full; the flow prefers stage 0.
  Plan plan;
  plan.num_layers = 2;
  plan.stages = {{.nodes = {0}, .layers = {0, 1}},
                 {.nodes = {1}, .layers = {0, 1}},
                 {.nodes = {2}, .layers = {1, 2}},
                 {.nodes = {3}, .layers = {1, 2}}};
  plan.edges = {{std::nullopt, 0, 90}, {std::nullopt, 1, 10}, {0, 2, 90}, {1, 3, 10},
                {2, std::nullopt, 90}, {3, std::nullopt, 10}};
  Routed routed(plan, 1000);
  routed.room(2).token_layers = 100;
  EXPECT_EQ(routed.Take(Routed::Need(100))->route.front().stage, 0);
  EXPECT_EQ(routed.Take(Routed::Need(100))->route.front().stage, 1);
}

// A stage of one route has a scheduler that queues, so it is used when nothing has room.
TEST(Router, ARouteOfItsOwnIsUsedBeyondItsRoomIfNoOtherHasRoom) {
  Routed routed(AllRoles(), 100, /*queues=*/true);
  EXPECT_TRUE(routed.Choose(Routed::Need(1000, 100)));
  routed.room(5).token_layers = kAmple;
  EXPECT_EQ(routed.Choose(Routed::Need(1000, 100))->role, StageRole::kBoth);
  Routed shared(AllRoles(), 100);
  EXPECT_FALSE(shared.Choose(Routed::Need(1000, 100)));
}

TEST(Router, WorkersThatDecodeStandInForPrefill) {
  Routed routed(AllRoles());
  for (const int stage : {0, 1, 5}) routed.room(stage).up = false;
  const auto walk = routed.Take(Routed::Need(300, 100));
  ASSERT_TRUE(walk);
  EXPECT_EQ(walk->role, StageRole::kDecode);
  routed.room(5).up = true;
  EXPECT_EQ(routed.Choose(Routed::Need(300, 100))->role, StageRole::kBoth);
}

TEST(Router, AMachineForBothStandsInForDecode) {
  Routed routed(AllRoles());
  RouteNeed need = Routed::Need(300, 100);
  need.prompt = false;
  EXPECT_EQ(routed.Choose(need)->role, StageRole::kDecode);
  for (const int stage : {2, 4}) routed.room(stage).up = false;
  EXPECT_EQ(routed.Choose(need)->role, StageRole::kBoth);
  routed.room(5).up = false;
  EXPECT_FALSE(routed.Choose(need));
}

TEST(Router, KvLeavesItsReachOnlyIfNoStageInReachIsUp) {
  Routed routed(AllRoles());
  const Route at_second = {{1, {0, 4}}};
  RouteNeed need = Routed::Need(300, 100);
  need.prompt = false;
  need.kv_at = &at_second;
  EXPECT_EQ(routed.Choose(need)->route.front().stage, 3);
  routed.room(4).token_layers = 0;
  EXPECT_FALSE(routed.Choose(need)) << "it waits for room";
  routed.room(4).up = false;
  EXPECT_EQ(routed.Choose(need)->route.front().stage, 2);
}

// A choice that is not taken changes nothing.
TEST(Router, ChoosingChargesNothing) {
  Routed routed(TwoByThree());
  const auto first = routed.Choose(Routed::Need(100));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(routed.Choose(Routed::Need(100))->route.front().stage, first->route.front().stage);
  }
}

TEST(Router, CountsWhatWasComputedAndNotWhatWasExpected) {
  Routed routed(TwoByThree());
  const auto walk = routed.Take(Routed::Need(100, 140));
  ASSERT_EQ(walk->route.front().stage, 0);
  ASSERT_EQ(routed.Take(Routed::Need(50))->route.front().stage, 1);
  EXPECT_EQ(routed.Choose(Routed::Need(1))->route.front().stage, 1) << "240 / 70 > 50 / 30";
  routed.router().Correct(*walk, -140);
  EXPECT_EQ(routed.Choose(Routed::Need(1))->route.front().stage, 0) << "100 / 70 < 50 / 30";
}

TEST(Router, RefusesPlansThatDoNotFitTogether) {
  const auto why = [](const Plan& plan) { return MakeLayout(plan, {}).status().message(); };
  Plan plan = TwoByThree();
  plan.edges.resize(7);
  plan.tokens_per_s = 0;
  EXPECT_EQ(why(plan), "no route of the plan covers all layers");
  plan = TwoByThree();
  plan.edges.push_back({2, 0, 1});
  plan.tokens_per_s = 0;
  EXPECT_EQ(why(plan), "edge 10 of the plan leads from layer 2 into [0, 1)");
  plan = TwoByThree();
  plan.edges[3].tokens_per_s = 26;
  EXPECT_EQ(why(plan),
            "stage 0 of the plan receives 70 tokens/s and sends 71 in the same phase; make them "
            "equal, or leave out `flow` and `bound` for equal shares");
  plan.tokens_per_s = 0;
  EXPECT_EQ(why(plan), "");
  plan.edges.push_back(plan.edges[3]);
  EXPECT_EQ(why(plan), "edge 10 of the plan is there twice");
  plan = AllRoles();
  plan.edges[0].to = 2;
  EXPECT_EQ(why(plan), "edge 0 of the plan carries what stage 2 with the role decode does not do");
  plan = AllRoles();
  plan.edges.pop_back();
  EXPECT_EQ(why(plan),
            "stage 1 of the plan does prefill, and no hand-over edge leads from it to a stage with "
            "its layer 2");
  plan = AllRoles();
  std::erase_if(plan.edges, [](const PlanEdge& edge) { return edge.phase == kAnswers; });
  EXPECT_EQ(why(plan), "the plan has prefill stages but no stages that decode");
  plan = AllRoles();
  std::erase_if(plan.edges, [](const PlanEdge& edge) {
    return edge.phase == kPrompts || edge.phase == EdgePhase::kBoth;
  });
  EXPECT_EQ(why(plan), "the plan has decode stages but no stages for prefill");
}

// Under random arrivals, ends and outages every walk covers all layers through stages that are up
// and have room, and a request that finds no walk has none, by a search of all routes.
TEST(Router, FindsAWalkExactlyIfThereIsOne) {
  for (int round = 0; round < 40 * TestScale(); ++round) {
    Rng rng(static_cast<uint64_t>(round));
    const Plan plan = rng.Between(0, 1) == 0 ? TwoByThree() : AllRoles();
    Routed routed(plan, rng.Between(100, 2000));
    const auto layers_of = [&](int s) { return plan.stages[static_cast<size_t>(s)].layers; };
    std::vector<std::pair<Walk, RouteNeed>> running;
    const std::function<bool(EdgePhase, std::optional<int>, int64_t)> reaches =
        [&](EdgePhase phase, std::optional<int> from, int64_t kv) -> bool {
      return std::ranges::any_of(plan.edges, [&](const PlanEdge& edge) {
        if (edge.phase != phase || edge.from != from) return false;
        if (!edge.to) return true;
        const int begin = from ? layers_of(*from).end : 0;
        const StageRoom& room = routed.room(*edge.to);
        return room.up && room.token_layers >= kv * (layers_of(*edge.to).end - begin) &&
               reaches(phase, edge.to, kv);
      });
    };
    for (int step = 0; step < 500; ++step) {
      const int64_t draw = rng.Between(0, 9);
      if (draw < 6) {
        const RouteNeed need = Routed::Need(rng.Between(1, 100), rng.Between(0, 50));
        const bool exists =
            reaches(EdgePhase::kBoth, {}, need.all_kv) || reaches(kPrompts, {}, need.prompt_kv);
        const auto walk = routed.Take(need);
        ASSERT_TRUE(walk || !exists) << "round " << round;
        if (!walk) continue;
        ASSERT_TRUE(exists || walk->role == StageRole::kDecode);
        int at = 0;
        for (const Hop& hop : walk->route) {
          ASSERT_EQ(hop.layers.begin, at);
          at = hop.layers.end;
          ASSERT_TRUE(routed.room(hop.stage).up);
          ASSERT_GE(routed.room(hop.stage).token_layers, 0);
        }
        ASSERT_EQ(at, plan.num_layers);
        running.emplace_back(*walk, need);
      } else if (draw < 9 && !running.empty()) {
        const auto ends = running.begin() + rng.Between(0, std::ssize(running) - 1);
        routed.Release(ends->first, ends->second);
        running.erase(ends);
      } else {
        const auto stage = static_cast<int>(rng.Between(0, std::ssize(plan.stages) - 1));
        routed.room(stage).up = rng.Between(0, 1) == 1;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cluster
