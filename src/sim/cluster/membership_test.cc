// Instances of a simulated service that come and go: times by hand, and no losses under random
// traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "base/testing/test_time.h"
#include "sim/cluster/instances.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

using What = MembershipChange::What;

const TwoSpeeds kCost;

// Losses here are the cloud's, however many a request meets.
constexpr int kManyDeaths = 1000;

InstanceClusterOptions Options(int instances, int num_blocks = 256) {
  InstanceOptions instance;
  instance.stages = {&kCost};
  instance.scheduler.num_blocks = num_blocks;
  instance.scheduler.max_model_len = 1024;
  instance.scheduler.prefix_caching = false;
  InstanceClusterOptions options;
  options.service.instances.assign(static_cast<size_t>(instances), instance);
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e10, .latency_s = 0.001};
  options.deaths_max = kManyDeaths;
  return options;
}

// Instances 0 and 1, one machine each, from the start.
std::vector<MembershipChange> TwoThere() {
  return {{At(0), 0, 0, What::kCame},
          {At(0), 0, 0, What::kReady},
          {At(0), 1, 1, What::kCame},
          {At(0), 1, 1, What::kReady}};
}

ServiceReport Serve(const InstanceClusterOptions& options, int requests, int output,
                    double rate = 1e3) {
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload = NewSynthetic({.requests = static_cast<uint64_t>(requests),
                                      .rate = rate,
                                      .prompt = {.a = 100},
                                      .output = {.a = static_cast<double>(output)},
                                      .seed = 1});
  ServiceReport report = cluster->Run(*workload);
  cluster->cluster().controller().CheckIntegrity();
  EXPECT_EQ(cluster->cluster().controller().Stats().blocks_pinned, 0)
      << "KV is held that will not be fetched";
  return report;
}

TEST(InstanceMembership, RecomputesWhatWasLost) {
  InstanceClusterOptions options = Options(2);
  options.membership = TwoThere();
  // Tokens at 0.1 to 0.13 on either instance; then both leave, and another arrives.
  options.membership.push_back({At(0.135), 0, 0, What::kLost});
  options.membership.push_back({At(0.135), 1, 1, What::kLost});
  options.membership.push_back({At(0.135), 0, 2, What::kCame});
  options.membership.push_back({At(0.2), 0, 2, What::kReady});
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload = NewSynthetic(
      {.requests = 1, .rate = INFINITY, .prompt = {.a = 100}, .output = {.a = 10}, .seed = 1});
  const ServiceReport report = cluster->Run(*workload);
  const LatencyReport& l = report.latency;
  EXPECT_EQ(l.requests, 1u);
  EXPECT_EQ(l.output_tokens, 10u) << "no token twice, none lost";
  EXPECT_NEAR(l.ttft.mean(), 0.1, 1e-9);
  // Ready at 0.2, recomputed in one step: the fifth token is at 0.3.
  EXPECT_NEAR(l.max_gap.mean(), 0.3 - 0.13, 1e-9);
  EXPECT_NEAR(l.e2e.mean(), 0.3 + 5 * 0.01, 1e-9);
  ASSERT_TRUE(report.membership.has_value());
  const MembershipReport& m = *report.membership;
  EXPECT_EQ(m.came, 1u);
  EXPECT_EQ(m.lost, 2u);
  EXPECT_EQ(m.replayed, 1u);
  EXPECT_EQ(m.replayed_tokens, 103u) << "the prompt and three; the fourth had only been sampled";
  EXPECT_EQ(m.waited_most, 1u);
  EXPECT_NEAR(m.nobody_s, 0.2 - 0.135, 1e-9);
  EXPECT_NEAR(m.ready_s, 2 * 0.135 + 0.15, 1e-9);
  EXPECT_NEAR(m.paid_s, 2 * 0.135 + 0.215, 1e-9);
}

// SpotServe section 4.2: after a notice the cache moves along, unless the request ends in time.
TEST(InstanceMembership, MovesWithItsKvBeforeTheEnd) {
  InstanceClusterOptions options = Options(2);
  options.membership = TwoThere();
  options.membership.erase(options.membership.begin() + 2, options.membership.end());
  options.membership.push_back({At(0.05), 1, 1, What::kCame});
  options.membership.push_back({At(0.05), 1, 1, What::kReady});
  options.membership.push_back({At(0.115), 0, 0, What::kNotice});
  options.membership.push_back({At(0.7), 0, 0, What::kLost});
  const ServiceReport report = Serve(options, 1, 20, INFINITY);
  EXPECT_EQ(report.latency.output_tokens, 20u);
  EXPECT_EQ(report.membership->moved, 1u);
  EXPECT_EQ(report.membership->replayed, 0u);
  // Six blocks are copied by 0.127 while it runs. It pauses with the token at 0.13 and fetches at
  // most 16 tokens of 1 MB at 10 GB/s, with 1 ms to ask and 1 ms to answer; then a step.
  EXPECT_GT(report.latency.max_gap.mean(), 0.012);
  EXPECT_LE(report.latency.max_gap.mean(), 0.002 + 0.0016 + 0.01 + 1e-9);

  options.on_notice = OnNotice::kFinish;
  const ServiceReport stays = Serve(options, 1, 20, INFINITY);
  EXPECT_EQ(stays.membership->moved, 0u);
  EXPECT_NEAR(stays.latency.max_gap.mean(), 0.01, 1e-9) << "30 s are enough to finish";
}

TEST(InstanceMembership, ContinuesWhereItIsWhenItsDestinationIsLost) {
  InstanceClusterOptions options = Options(2);
  options.membership = {{At(0), 0, 0, What::kCame},       {At(0), 0, 0, What::kReady},
                        {At(0.05), 1, 1, What::kCame},    {At(0.05), 1, 1, What::kReady},
                        {At(0.115), 0, 0, What::kNotice}, {At(0.12), 1, 1, What::kLost}};
  // Its KV is under way when the destination is lost.
  const ServiceReport report = Serve(options, 1, 20, INFINITY);
  EXPECT_EQ(report.latency.output_tokens, 20u);
  EXPECT_EQ(report.membership->moved, 0u);
  EXPECT_NEAR(report.latency.max_gap.mean(), 0.01, 1e-9);
}

TEST(InstanceMembership, RequestsWaitForTheFirstAndAreRefusedWhenNoInstanceComes) {
  InstanceClusterOptions options = Options(1);
  options.membership = {{At(5), 0, 0, What::kCame}, {At(7), 0, 0, What::kReady}};
  const ServiceReport late = Serve(options, 3, 4);
  EXPECT_EQ(late.latency.requests, 3u);
  EXPECT_EQ(late.membership->waited_most, 3u);
  EXPECT_NEAR(late.membership->nobody_s, 7, 1e-9);
  EXPECT_GT(late.latency.ttft.At(0.01), 7.0);

  options.membership = {
      {At(0), 0, 0, What::kCame}, {At(0), 0, 0, What::kReady}, {At(0.15), 0, 0, What::kLost}};
  const ServiceReport gone = Serve(options, 3, 40);
  EXPECT_EQ(gone.latency.requests, 0u);
  EXPECT_EQ(gone.latency.refused, 3u);
}

std::string RandomChanges(Rng& rng, int machines) {
  std::string text;
  std::vector<bool> there(static_cast<size_t>(machines));
  double at_s = 0;
  for (int i = 0; i < 60; ++i) {
    const size_t m = static_cast<size_t>(rng.Between(0, machines - 1));
    there[m] = !there[m];
    text +=
        fmt::format("{},{},m{}\n", static_cast<int>(at_s * 1e3), there[m] ? "add" : "remove", m);
    if (i > 1) at_s += rng.Uniform() * 2;
  }
  for (size_t m = 0; m < there.size(); ++m) {  // those present at the end serve the rest
    if (!there[m]) text += fmt::format("{},add,m{}\n", static_cast<int>(at_s * 1e3 + 1e3), m);
  }
  return text;
}

TEST(InstanceMembership, NothingIsLostUnderRandomTraces) {
  uint64_t moved = 0, replayed = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const auto trace = ParseAvailability(RandomChanges(rng, 5));
    ASSERT_TRUE(trace.ok()) << trace.status().ToString();
    InstanceClusterOptions options = Options(3, 24 + static_cast<int>(rng.Between(0, 63)));
    options.membership =
        MembershipOf(*trace, {.instances = 3, .notice_s = rng.Uniform(), .load_s = rng.Uniform()});
    options.on_notice = seed % 4 == 0 ? OnNotice::kFinish : OnNotice::kMove;
    if (seed % 3 == 0) options.service.dispatch = cluster::DispatchPolicy::kPredictedTime;
    options.kv_transfer.bytes_per_s = 1e9 * (1 + 20 * rng.Uniform());
    const ServiceReport report = Serve(options, 400, 30, 10);
    EXPECT_EQ(report.latency.requests, 400u) << seed;
    EXPECT_EQ(report.latency.refused, 0u) << seed;
    EXPECT_EQ(report.latency.output_tokens, 400u * 30) << seed;
    EXPECT_EQ(report.latency.told_tokens, 400u * 30) << seed;
    EXPECT_LE(report.membership->ready_s, report.membership->paid_s + 1e-6) << seed;
    for (const auto& shares : report.busy_share) EXPECT_LE(shares[0], 1 + 1e-9) << seed;
    moved += report.membership->moved;
    replayed += report.membership->replayed;
    const ServiceReport again = Serve(options, 400, 30, 10);
    EXPECT_EQ(again.events, report.events) << seed;
    EXPECT_EQ(again.latency.e2e.mean(), report.latency.e2e.mean()) << seed;
  }
  EXPECT_GT(moved, 100u);
  EXPECT_GT(replayed, 100u);
}

}  // namespace
}  // namespace millrace::sim
