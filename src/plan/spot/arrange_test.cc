// Just-in-time arrangement and the choice among finish, copy and replay.
#include "plan/spot/arrange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "plan/spot/testing.h"

namespace millrace::plan::spot {
namespace {

TEST(SpotArrangeTest, PublishedFormula) {
  const Profile gpt = PublishedProfile("h6144");
  const ExecutionTime one = *Execution(gpt, {1, 3, 4, 1, 1, 1});
  const ExecutionTime four = *Execution(gpt, {1, 3, 4, 4, 4, 1});
  PublishedArrangement a{.migration_s = 5};
  const double t1 = four.prefill_ms * 1.1 / 1000, t2 = four.step_ms * 1.1 / 1000;
  EXPECT_EQ(PublishedSteps(a, 0, one, four, 128), 128) << "25 s are enough for a whole batch";
  const int steps = PublishedSteps(a, 15, one, four, 128);  // 10 s are left
  EXPECT_EQ(steps, static_cast<int>(std::floor((10 - t1) / t2)) - 1);
  EXPECT_GT(steps, 0);
  EXPECT_EQ(PublishedSteps(a, 25, one, four, 128), 0);
  EXPECT_EQ(PublishedSteps(a, 24, one, four, 128), 0) << "not even a prefill fits";
  // With a new machine expected: decode until it is ready, with one step too many rather than one
  // too few.
  a.preemption = false;
  const int until = PublishedSteps(a, 25, one, four, 128);  // ready in 30 + 5 - 25 = 10 s
  EXPECT_EQ(
      until,
      static_cast<int>(std::floor((10 - four.prefill_ms / 1100) / (four.step_ms / 1100))) + 1);
}

TEST(SpotArrangeTest, StepsNeverOutliveTheGrace) {
  const Profile gpt = PublishedProfile("h6144");
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    const int batch = 1 << rng.Between(0, 2);
    const ExecutionTime one = *Execution(gpt, {1, 3, 4, 1, 1, 1});
    const ExecutionTime time = *Execution(gpt, {1, 3, 4, batch, batch, 1});
    const PublishedArrangement a{.migration_s = 20 * rng.Uniform()};
    const double elapsed = 30 * rng.Uniform();
    const int steps = PublishedSteps(a, elapsed, one, time, 128);
    if (steps == 0) continue;
    EXPECT_LE(elapsed + time.Total(steps) / 1000 + a.migration_s, 30) << seed;
  }
}

// Whether the rule leaves the request where it is.
bool Stays(const std::vector<LiveRequest>& requests, const LiveRequest& r,
           const RecoveryBudget& budget) {
  double bytes = 0;
  for (const LiveRequest& one : requests) bytes += static_cast<double>(one.kv_bytes);
  return r.latest_finish_s + r.kv_bytes / budget.bytes_per_s <= budget.seconds ||
         r.finish_s + bytes / budget.bytes_per_s <= budget.seconds;
}

// The least replayed work over all subsets of the requests that are cheaper to copy than to replay.
double LeastReplay(const std::vector<LiveRequest>& requests, const RecoveryBudget& budget) {
  double least = INFINITY;
  for (unsigned mask = 0; mask < 1u << requests.size(); ++mask) {
    double bytes = 0, replay = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (Stays(requests, requests[i], budget)) continue;
      const double kv_bytes = static_cast<double>(requests[i].kv_bytes);
      if ((mask >> i & 1) != 0 && kv_bytes < requests[i].replay_s * budget.bytes_per_s) {
        bytes += kv_bytes;
      } else {
        replay += requests[i].replay_s;
      }
    }
    if (bytes <= budget.seconds * budget.bytes_per_s) least = std::min(least, replay);
  }
  return least;
}

TEST(SpotArrangeTest, RecoveryAgainstEveryChoice) {
  double ours = 0, best = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    std::vector<LiveRequest> requests(rng.Between(1, 10));
    double greatest = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t tokens = rng.Between(1, 4000);
      requests[i] = {.id = static_cast<int64_t>(i),
                     .finish_s = 40 * rng.Uniform(),
                     .latest_finish_s = 80 * rng.Uniform(),
                     .kv_bytes = tokens * 100'000,
                     .replay_s = static_cast<double>(tokens) / (500 + 4000 * rng.Uniform()),
                     .waiting_s = 100 * rng.Uniform()};
      greatest = std::max(greatest, requests[i].replay_s);
    }
    const RecoveryBudget budget{.seconds = 5 * rng.Uniform(), .bytes_per_s = 2e8 * rng.Uniform()};
    const RecoveryPlan plan = ChooseRecovery(requests, budget);
    int64_t bytes = 0;
    double replayed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const LiveRequest& r = requests[i];
      ASSERT_EQ(plan.choice[i] == Recovery::kFinish, Stays(requests, r, budget)) << seed;
      if (plan.choice[i] == Recovery::kCopy) {
        bytes += r.kv_bytes;
        ASSERT_LT(r.kv_bytes / budget.bytes_per_s, r.replay_s)
            << seed << ": more expensive than replay";
      }
      if (plan.choice[i] == Recovery::kReplay) replayed += r.replay_s;
    }
    ASSERT_EQ(bytes, plan.copied_bytes) << seed;
    ASSERT_LE(static_cast<double>(bytes), budget.seconds * budget.bytes_per_s) << seed;
    ASSERT_NEAR(replayed, plan.replayed_s, 1e-9) << seed;
    ASSERT_EQ(std::count(plan.choice.begin(), plan.choice.end(), Recovery::kCopy),
              static_cast<int64_t>(plan.copies.size()));
    for (size_t j = 1; j < plan.copies.size(); ++j) {
      const LiveRequest &a = requests[plan.copies[j - 1]], &b = requests[plan.copies[j]];
      ASSERT_GE(a.replay_s / a.kv_bytes, b.replay_s / b.kv_bytes * (1 - 1e-9)) << seed;
    }
    ours += replayed;
    best += LeastReplay(requests, budget);
  }
  EXPECT_LE(ours, best * 1.1) << "greedy by density is close to the knapsack's optimum";
}

TEST(SpotArrangeTest, AgeingHelpsTheOldest) {
  const std::vector<LiveRequest> requests = {{.id = 0,
                                              .finish_s = 99,
                                              .latest_finish_s = 99,
                                              .kv_bytes = 100,
                                              .replay_s = 2,
                                              .waiting_s = 0},
                                             {.id = 1,
                                              .finish_s = 99,
                                              .latest_finish_s = 99,
                                              .kv_bytes = 100,
                                              .replay_s = 1.5,
                                              .waiting_s = 60}};
  RecoveryBudget budget{.seconds = 1, .bytes_per_s = 100};
  EXPECT_EQ(ChooseRecovery(requests, budget).copies, std::vector<size_t>{0});
  budget.ageing_per_s = 0.01;
  EXPECT_EQ(ChooseRecovery(requests, budget).copies, std::vector<size_t>{1});
  budget.seconds = -1;
  EXPECT_TRUE(ChooseRecovery(requests, budget).copies.empty()) << "too late for anything";
}

// 300 bytes take 3 s, so what is expected to end in 5 s can still be copied if it does not.
TEST(SpotArrangeTest, AnExpectedEndLeavesTimeToCopyAll) {
  std::vector<LiveRequest> requests(3, {.finish_s = 5, .latest_finish_s = 60, .kv_bytes = 100});
  RecoveryBudget budget{.seconds = 8, .bytes_per_s = 100, .copies_while_running = true};
  EXPECT_EQ(ChooseRecovery(requests, budget).choice, std::vector<Recovery>(3, Recovery::kFinish));
  budget.seconds = 7.9;
  EXPECT_EQ(ChooseRecovery(requests, budget).choice, std::vector<Recovery>(3, Recovery::kCopy));
  requests[1].latest_finish_s = 6.9;
  EXPECT_EQ(ChooseRecovery(requests, budget).choice[1], Recovery::kFinish) << "it is certain";
}

TEST(SpotArrangeTest, ACopyInTheBackgroundIsNeverWorseThanAReplay) {
  const std::vector<LiveRequest> requests = {
      {.finish_s = 99, .latest_finish_s = 99, .kv_bytes = 100, .replay_s = 0.1}};
  RecoveryBudget budget{.seconds = 5, .bytes_per_s = 100};
  EXPECT_EQ(ChooseRecovery(requests, budget).choice[0], Recovery::kReplay);
  budget.copies_while_running = true;
  EXPECT_EQ(ChooseRecovery(requests, budget).choice[0], Recovery::kCopy);
}

}  // namespace
}  // namespace millrace::plan::spot
