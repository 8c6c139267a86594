#include "cluster/control/routing/dispatch.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::cluster {
namespace {

using Loads = std::vector<DispatchLoad>;

DispatchLoad Load(int64_t requests, double prefill_s = 0) {
  return {.requests = requests, .prefill_ahead = Duration::Seconds(prefill_s)};
}

std::vector<size_t> Turns(Dispatcher dispatcher, const Loads& loads, int turns) {
  std::vector<size_t> chosen;
  for (int i = 0; i < turns; ++i) {
    chosen.push_back(dispatcher.Choose(loads));
    dispatcher.Sent();
  }
  return chosen;
}

TEST(Dispatcher, FewestRequests) {
  const Loads loads = {Load(3, 0.1), Load(2, 9), Load(5, 0)};
  EXPECT_EQ(Dispatcher({}).Choose(loads), 1u);
}

TEST(Dispatcher, PredictedTimeThenFewestRequests) {
  const Dispatcher dispatcher({.policy = DispatchPolicy::kPredictedTime});
  EXPECT_EQ(dispatcher.Choose(Loads{Load(1, 0.3), Load(9, 0.2), Load(2, 0.3)}), 1u);
  EXPECT_EQ(dispatcher.Choose(Loads{Load(4, 0.2), Load(3, 0.2), Load(1, 0.3)}), 1u);
}

TEST(Dispatcher, RoundRobinIgnoresTheLoad) {
  const Loads loads = {Load(9, 9), Load(0), Load(4)};
  EXPECT_EQ(Turns(Dispatcher({.policy = DispatchPolicy::kRoundRobin}), loads, 5),
            (std::vector<size_t>{0, 1, 2, 0, 1}));
}

TEST(Dispatcher, TiesGoToTheFirstOrInTurn) {
  const Loads loads = {Load(1), Load(0), Load(1), Load(0)};
  EXPECT_EQ(Turns(Dispatcher({}), loads, 4), (std::vector<size_t>{1, 1, 1, 1}));
  EXPECT_EQ(Turns(Dispatcher({.ties = DispatchTies::kInTurn}), loads, 4),
            (std::vector<size_t>{1, 1, 3, 3}));
}

TEST(Dispatcher, RandomIsEvenAndFollowsFromTheSeed) {
  const Loads loads(4);
  const auto run = [&](uint64_t seed) {
    return Turns(Dispatcher({.policy = DispatchPolicy::kRandom, .seed = seed}), loads, 4000);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  std::vector<int> count(4);
  for (size_t i : run(3)) ++count[i];
  for (int n : count) EXPECT_NEAR(n, 1000, 120);  // 4 standard deviations
}

// Whatever the policy, a candidate of a higher rank gets nothing while there is one of a lower
// rank.
TEST(Dispatcher, TheLowestRankComesFirst) {
  Loads loads = {Load(0), Load(7), Load(0), Load(9)};
  loads[0].rank = loads[2].rank = 1;
  const auto turns = [&](DispatchPolicy policy, DispatchTies ties) {
    return Turns(Dispatcher({.policy = policy, .ties = ties}), loads, 4);
  };
  const auto first = DispatchTies::kFirst;
  EXPECT_EQ(turns(DispatchPolicy::kRoundRobin, first), (std::vector<size_t>{1, 3, 1, 3}));
  EXPECT_EQ(turns(DispatchPolicy::kFewestRequests, first), (std::vector<size_t>{1, 1, 1, 1}));
  for (size_t i : turns(DispatchPolicy::kRandom, first)) EXPECT_EQ(loads[i].rank, 0);
  loads[3] = loads[1];
  EXPECT_EQ(turns(DispatchPolicy::kPredictedTime, DispatchTies::kInTurn),
            (std::vector<size_t>{1, 3, 1, 3}));
}

// A request that could not be sent yet does not use up a turn.
TEST(Dispatcher, ChoosesTheSameUntilARequestIsSent) {
  Dispatcher dispatcher({.policy = DispatchPolicy::kRoundRobin});
  const Loads loads(2);
  EXPECT_EQ(dispatcher.Choose(loads), dispatcher.Choose(loads));
  dispatcher.Sent();
  EXPECT_EQ(dispatcher.Choose(loads), 1u);
}

}  // namespace
}  // namespace millrace::cluster
