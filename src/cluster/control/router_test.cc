#include "cluster/control/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/test_scale.h"

namespace millrace::cluster {
namespace {

constexpr Time kStart{};

// Layer 0 on stages 0 and 1, layer 1 on stages 2, 3 and 4; flows all different.
Plan TwoByThree() {
  Plan plan;
  plan.num_layers = 2;
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

Router MakeRouter(const Plan& plan, int64_t kv, RouterOptions options = {}) {
  auto router =
      Router::Create(plan, std::vector<int64_t>(plan.stages.size(), kv), std::move(options));
  MR_CHECK(router.ok()) << router.status().ToString();
  return std::move(router).value();
}

RouteRequest Request(uint64_t id, int64_t tokens) {
  return {.id = RequestId(id), .prompt_tokens = tokens};
}

TEST(Router, SharesFollowTheFlowWithinOnePercent) {
  Router router = MakeRouter(TwoByThree(), int64_t{1} << 40);
  constexpr int kRequests = 10'000;
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(router.Submit(Request(i, 100), kStart).ok());
  for (size_t e = 0; e < router.plan().edges.size(); ++e) {
    const double share = router.edge_tokens()[e] / (100.0 * kRequests);
    EXPECT_NEAR(share, router.plan().edges[e].tokens_per_s / 100, 0.01) << "edge " << e;
  }
}

TEST(Router, NoBurstInAnyWindow) {
  Router router = MakeRouter(TwoByThree(), int64_t{1} << 40);
  constexpr int kRequests = 10'000, kWindow = 100;
  std::vector<std::vector<int>> seen(5);  // by stage: the requests that went there
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(router.Submit(Request(i, 100), kStart).ok());
    for (const Hop& hop : *router.RouteOf(RequestId(i))) seen[hop.stage].push_back(i);
  }
  const double share[] = {0.70, 0.30, 0.40, 0.35, 0.25};
  for (int s = 0; s < 5; ++s) {
    for (size_t first = 0, last = 0; last < seen[s].size(); ++last) {
      while (seen[s][last] - seen[s][first] >= kWindow) ++first;
      ASSERT_LE(last - first + 1, 2 * share[s] * kWindow) << "stage " << s;
    }
  }
}

TEST(Router, AStageThatIsUpAgainGetsNoBurst) {
  Router router = MakeRouter(TwoByThree(), int64_t{1} << 40);
  uint64_t id = 0;
  router.SetStageUp(1, false, kStart);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(router.Submit(Request(id++, 100), kStart).ok());
  router.SetStageUp(1, true, kStart);
  int through = 0;
  for (int i = 0; i < 100; ++i, ++id) {
    ASSERT_TRUE(router.Submit(Request(id, 100), kStart).ok());
    through += router.RouteOf(RequestId(id))->front().stage == 1;
  }
  EXPECT_NEAR(through, 30, 2);
}

TEST(Router, PartialHopsRunAndChargeOnlyTheirLayers) {
  Plan plan;
  plan.num_layers = 8;
  plan.stages = {{.nodes = {0}, .layers = {0, 4}}, {.nodes = {1}, .layers = {0, 8}}};
  plan.edges = {{std::nullopt, 0, 10}, {0, 1, 10}, {1, std::nullopt, 10}};
  Router router = MakeRouter(plan, 1000);
  ASSERT_TRUE(router.Submit(Request(1, 100), kStart).ok());
  const Route expected = {{0, {0, 4}}, {1, {4, 8}}};
  const Route& route = *router.RouteOf(RequestId(1));
  ASSERT_EQ(route.size(), 2u);
  EXPECT_EQ(route[1].layers, expected[1].layers);
  EXPECT_EQ(router.kv().used(1), 400);
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
  auto router = Router::Create(plan, {1000, 1000, 100, 1000}, {.kv_high_water = 1});
  ASSERT_TRUE(router.ok());
  ASSERT_TRUE(router->Submit(Request(1, 100), kStart).ok());
  EXPECT_EQ(router->RouteOf(RequestId(1))->front().stage, 0);
  ASSERT_TRUE(router->Submit(Request(2, 100), kStart).ok());
  ASSERT_NE(router->RouteOf(RequestId(2)), nullptr);
  EXPECT_EQ(router->RouteOf(RequestId(2))->front().stage, 1);
}

TEST(Router, ReleasesExactlyOnceAndServesTheQueue) {
  Router router = MakeRouter(TwoByThree(), 100, {.kv_high_water = 1});
  uint64_t id = 0;
  while (router.queued() == 0) ASSERT_TRUE(router.Submit(Request(id++, 100), kStart).ok());
  ASSERT_EQ(router.running(), 2);  // one for each stage that holds layer 0
  router.TakeDecisions(kStart);
  EXPECT_TRUE(router.Release(RequestId(0), 100, kStart));
  EXPECT_FALSE(router.Release(RequestId(0), 100, kStart));
  const auto decisions = router.TakeDecisions(kStart);
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].id, RequestId(id - 1));
  EXPECT_EQ(decisions[0].outcome, Router::Outcome::kRouted);
}

TEST(Router, RefusesRequestsThatNeverFitAndBoundsTheQueue) {
  Router router = MakeRouter(TwoByThree(), 100, {.kv_high_water = 1, .queue_max = 1});
  EXPECT_EQ(router.Submit(Request(1, 101), kStart).code(), StatusCode::kInvalidArgument);
  for (uint64_t id = 2; id < 5; ++id) ASSERT_TRUE(router.Submit(Request(id, 100), kStart).ok());
  EXPECT_EQ(router.Submit(Request(9, 100), kStart).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(router.Submit(Request(2, 1), kStart).code(), StatusCode::kFailedPrecondition);
}

TEST(Router, DeadlinesAndCancelledRequestsLeaveTheQueue) {
  Router router = MakeRouter(TwoByThree(), 100, {.kv_high_water = 1});
  for (uint64_t id = 0; id < 2; ++id) ASSERT_TRUE(router.Submit(Request(id, 100), kStart).ok());
  RouteRequest late = Request(7, 100);
  late.deadline = kStart + Duration::Seconds(1);
  ASSERT_TRUE(router.Submit(late, kStart).ok());
  ASSERT_TRUE(router.Submit(Request(8, 100), kStart).ok());
  EXPECT_TRUE(router.Release(RequestId(8), 0, kStart));
  EXPECT_EQ(router.queued(), 1);
  router.TakeDecisions(kStart);
  const auto decisions = router.TakeDecisions(kStart + Duration::Seconds(1));
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].outcome, Router::Outcome::kExpired);
  EXPECT_EQ(router.queued(), 0);
}

TEST(Router, SmallRequestsPassALargeOneOnlyUntilItIsOld) {
  Plan plan;
  plan.num_layers = 1;
  plan.stages = {{.nodes = {0}, .layers = {0, 1}}};
  plan.edges = {{std::nullopt, 0, 1}, {0, std::nullopt, 1}};
  Router router = MakeRouter(plan, 100, {.kv_high_water = 1});
  ASSERT_TRUE(router.Submit(Request(1, 60), kStart).ok());
  ASSERT_TRUE(router.Submit(Request(2, 90), kStart).ok());  // waits
  ASSERT_TRUE(router.Submit(Request(3, 20), kStart).ok());  // passes
  EXPECT_NE(router.RouteOf(RequestId(3)), nullptr);
  const Time later = kStart + Duration::Seconds(3);
  ASSERT_TRUE(router.Submit(Request(4, 20), later).ok());  // does not
  EXPECT_EQ(router.RouteOf(RequestId(4)), nullptr);
  router.Release(RequestId(3), 20, later);
  EXPECT_EQ(router.queued(), 2);
  router.Release(RequestId(1), 60, later);
  EXPECT_NE(router.RouteOf(RequestId(2)), nullptr);
}

TEST(Router, GrowthIsReservedOnAllHopsAndReleased) {
  Router router = MakeRouter(TwoByThree(), 100, {.kv_high_water = 1});
  ASSERT_TRUE(router.Submit(Request(1, 50), kStart).ok());
  EXPECT_TRUE(router.Grow(RequestId(1), 40));
  EXPECT_TRUE(router.Grow(RequestId(1), 100));
  EXPECT_FALSE(router.Grow(RequestId(1), 101));
  router.Release(RequestId(1), 101, kStart);
  for (int s = 0; s < 5; ++s) EXPECT_EQ(router.kv().used(s), 0);
}

TEST(Router, BaselinesUseOnlyOpenEdges) {
  for (const RoutingPolicy policy : {RoutingPolicy::kRandom, RoutingPolicy::kShortestQueue}) {
    Router router = MakeRouter(TwoByThree(), int64_t{1} << 40, {.policy = policy});
    router.SetStageUp(4, false, kStart);
    std::vector<int> visits(5, 0);
    for (int i = 0; i < 900; ++i) {
      ASSERT_TRUE(router.Submit(Request(i, 10), kStart).ok());
      for (const Hop& hop : *router.RouteOf(RequestId(i))) ++visits[hop.stage];
    }
    EXPECT_EQ(visits[4], 0);
    EXPECT_NEAR(visits[0], 450, policy == RoutingPolicy::kRandom ? 60 : 1);
  }
}

TEST(Router, RefusesPlansWithoutARoute) {
  Plan plan = TwoByThree();
  plan.edges.resize(7);
  EXPECT_FALSE(Router::Create(plan, std::vector<int64_t>(5, 1), {}).ok());
  plan = TwoByThree();
  plan.edges.push_back({2, 0, 1});
  EXPECT_FALSE(Router::Create(plan, std::vector<int64_t>(5, 1), {}).ok());
  EXPECT_FALSE(Router::Create(TwoByThree(), {1}, {}).ok());
}

// Under random arrivals, ends and outages every route covers all layers, no stage reserves more KV
// than its high-water mark at admission, all reservations are freed, and every request is served.
TEST(Router, NoDeadlockUnderRandomMasks) {
  for (int round = 0; round < 60 * TestScale(); ++round) {
    Rng rng(round);
    RouterOptions options{.policy = static_cast<RoutingPolicy>(rng.Between(0, 2)),
                          .kv_high_water = 1};
    Router router = MakeRouter(TwoByThree(), rng.Between(100, 2000), options);
    std::set<uint64_t> open;  // running
    uint64_t next = 0, routed = 0, accepted = 0;
    Time now = kStart;
    const auto take = [&] {
      for (const auto& decision : router.TakeDecisions(now)) {
        ASSERT_EQ(decision.outcome, Router::Outcome::kRouted);
        int at = 0;
        for (const Hop& hop : decision.route) {
          ASSERT_EQ(hop.layers.begin, at);
          at = hop.layers.end;
        }
        ASSERT_EQ(at, 2);
        open.insert(decision.id.value());
        ++routed;
      }
      for (int s = 0; s < 5; ++s) ASSERT_LE(router.kv().used(s), router.kv().capacity(s));
    };
    for (int step = 0; step < 2000; ++step) {
      now = now + Duration::Millis(rng.Between(0, 50));
      const int64_t draw = rng.Between(0, 9);
      if (draw < 5) {
        accepted += router.Submit(Request(next++, rng.Between(1, 100)), now).ok();
      } else if (draw < 9 && !open.empty()) {
        const uint64_t id = *std::next(open.begin(), rng.Between(0, open.size() - 1));
        ASSERT_TRUE(router.Release(RequestId(id), 10, now));
        open.erase(id);
      } else {
        router.SetStageUp(static_cast<int>(rng.Between(0, 4)), rng.Between(0, 1) == 1, now);
      }
      take();
    }
    for (int s = 0; s < 5; ++s) router.SetStageUp(s, true, now);
    take();
    while (!open.empty()) {
      const uint64_t id = *open.begin();
      open.erase(id);
      router.Release(RequestId(id), 10, now);
      take();
    }
    ASSERT_EQ(routed, accepted) << "round " << round;
    ASSERT_EQ(router.queued(), 0) << "round " << round;
    for (int s = 0; s < 5; ++s) ASSERT_EQ(router.kv().used(s), 0);
  }
}

}  // namespace
}  // namespace millrace::cluster
