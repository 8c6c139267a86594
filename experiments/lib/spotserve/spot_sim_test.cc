// The simulated cloud: quiet clouds, the costs of the published segments, and invariants under
// random clouds.
#include "experiments/lib/spotserve/spot_sim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/testing/test_scale.h"
#include "experiments/lib/spotserve/arrivals.h"
#include "plan/spot/testing.h"

namespace millrace::experiments::spotserve {
namespace {

constexpr System kSystems[] = {System::kSpotServe, System::kReparallelization, System::kRerouting,
                               System::kMillrace};

SpotModel Gpt() {
  return {.profile = plan::spot::PublishedProfile("h6144"),
          .space = {.devices_min = 12, .batch_max = 4, .devices_per_instance = 4},
          .bytes = ModelBytes::Transformer(44, 6144, 50304, 2048, 4)};
}

SpotReport MustRun(const sim::AvailabilityTrace& trace, const std::vector<double>& arrivals,
                   const SpotOptions& options, const SpotCloud& cloud = {}) {
  auto report = SimulateSpot(Gpt(), cloud, trace, arrivals, options);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return *report;
}

TEST(SpotSimTest, NothingChangesInAQuietCloud) {
  const auto trace = sim::ConstantAvailability(6, 1200);
  const auto arrivals = Arrivals(0.35, 1170, {});
  for (const System system : kSystems) {
    const SpotReport report = MustRun(trace, arrivals, {.system = system});
    EXPECT_EQ(report.finished, arrivals.size()) << SystemName(system);
    EXPECT_LE(report.reconfigurations, 1) << SystemName(system) << ": the first deployment";
    EXPECT_EQ(report.lost_steps + report.replayed_tokens, 0) << SystemName(system);
    EXPECT_EQ(report.pause_s, 0) << SystemName(system);
    EXPECT_NEAR(report.spot_hours, 2, 1e-9);
    EXPECT_NEAR(report.usd, 2 * 1.9046, 1e-9);
    EXPECT_NEAR(report.usd_per_token, report.usd / (640.0 * report.finished), 1e-12);
    double least_s = INFINITY;
    for (const int batch : {1, 2, 4}) {
      const auto time = Execution(Gpt().profile, {1, 3, 4, batch, batch, 1});
      least_s = std::min(least_s, time->Total(128) / 1000);
    }
    EXPECT_GE(*std::min_element(report.latency_s.begin(), report.latency_s.end()), least_s - 1e-6);
  }
}

// The same machines and load: without events, all four systems behave the same.
TEST(SpotSimTest, SystemsAgreeInAQuietCloud) {
  const auto trace = sim::ConstantAvailability(6, 1200);
  const auto arrivals = Arrivals(0.35, 1170, {});
  SpotOptions options;
  options.controller.optimize.headroom = 1.15;
  const SpotReport first = MustRun(trace, arrivals, options);
  for (const System system : kSystems) {
    options.system = system;
    EXPECT_EQ(MustRun(trace, arrivals, options).latency_s, first.latency_s) << SystemName(system);
  }
}

constexpr char kSegment[] = R"([0, "add", {"nodes": ["a","b","c","d","e","f","g","h","i","j"]}])"
                            "\n"
                            R"([120000, "remove", {"nodes": ["e", "i"]}])"
                            "\n"
                            R"([210000, "add", {"nodes": ["k", "l"]}])"
                            "\n"
                            R"([240000, "remove", {"nodes": ["a"]}])"
                            "\n"
                            R"([330000, "add", {"nodes": ["m"]}])"
                            "\n"
                            R"([720000, "DONE", {"nodes": []}])";  // SpotServe's B_S+O

TEST(SpotSimTest, ChargesWhatWasThere) {
  const auto trace = *sim::ParseAvailability(kSegment);
  const auto arrivals = Arrivals(0.35, 690, {});
  SpotCloud cloud;
  cloud.on_demand_after_loss_s = 90;
  const SpotReport report = MustRun(trace, arrivals, {}, cloud);
  // 115.5 machine-minutes in total; the three replacements are present for 510, 510 and 390 s.
  EXPECT_NEAR((report.spot_hours + report.on_demand_hours) * 60, 115.5, 1e-6);
  EXPECT_NEAR(report.on_demand_hours * 60, 23.5, 1e-6);
  EXPECT_NEAR(report.usd, (92 * 1.9046 + 23.5 * 3.912) / 60, 1e-6);
  EXPECT_LE(report.held_usd, report.usd);
}

TEST(SpotSimTest, KvMovesOnlyWhereItMay) {
  const auto trace = *sim::ParseAvailability(kSegment);
  const auto arrivals = Arrivals(0.35, 690, {});
  const SpotReport spot = MustRun(trace, arrivals, {.system = System::kSpotServe});
  EXPECT_GT(spot.moved_kv_bytes, 0);
  EXPECT_EQ(
      spot.storage_bytes - MustRun(sim::ConstantAvailability(10, 720), arrivals, {}).storage_bytes,
      0)
      << "weights come from peers";
  const SpotReport restart = MustRun(trace, arrivals, {.system = System::kReparallelization});
  EXPECT_EQ(restart.moved_bytes, 0);
  EXPECT_GT(restart.pause_s, 2 * spot.pause_s);
  const SpotReport ours = MustRun(trace, arrivals, {.system = System::kMillrace});
  EXPECT_EQ(ours.lost_steps, 0) << "delivered tokens are never decoded again";
  EXPECT_LT(ours.pause_s, spot.pause_s);
}

// A random cloud: machines come and go at random, sometimes until none is left.
sim::AvailabilityTrace RandomTrace(Rng& rng) {
  std::string text;
  int count = static_cast<int>(rng.Between(3, 10));
  double at = 0;
  for (int i = 0; i < 14; ++i) {
    text += std::to_string(at) + "," + std::to_string(count) + "\n";
    at += 120 * rng.Uniform() * rng.Uniform() + 1;
    count = static_cast<int>(std::clamp<int64_t>(count + rng.Between(-4, 4), 0, 12));
  }
  text += std::to_string(at) + ",8\n" + std::to_string(at + 300) + ",8\n";
  return *sim::ParseAvailability(text);
}

TEST(SpotSimTest, RandomCloudsLoseNoRequest) {
  int changes = 0, lost = 0, replayed = 0;
  const uint64_t seeds = 40 * static_cast<uint64_t>(TestScale());
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Rng rng(seed);
    const sim::AvailabilityTrace trace = RandomTrace(rng);
    const auto arrivals = Arrivals(
        0.3 * rng.Uniform() + 0.05, trace.end_s,
        {.spread = seed % 2 == 0 ? Spread::kGamma : Spread::kAsPublished, .cv = 3, .seed = seed});
    for (const System system : kSystems) {
      for (const Batching batching : {Batching::kToCompletion, Batching::kContinuous}) {
        SpotOptions options{.system = system, .batching = batching};
        options.controller.optimize.serving_spares = static_cast<int>(seed % 3);
        SpotCloud cloud;
        cloud.grace_s = seed % 4 == 0 ? 5 : 30;
        const SpotReport report = MustRun(trace, arrivals, options, cloud);
        ASSERT_EQ(report.finished, report.requests) << seed << SystemName(system);
        for (const double s : report.latency_s) ASSERT_GT(s, 5) << seed << SystemName(system);
        if (system == System::kMillrace) {
          ASSERT_EQ(report.lost_steps, 0) << seed;
        }
        if (system != System::kMillrace) {
          ASSERT_EQ(report.replayed_tokens, 0) << seed;
        }
        changes += report.reconfigurations;
        lost += report.lost_steps > 0;
        replayed += report.replayed_tokens > 0;
      }
    }
  }
  EXPECT_GT(changes, 800);
  EXPECT_GT(lost, 30);
  EXPECT_GT(replayed, 12);
}

TEST(SpotSimTest, SameInputSameReport) {
  Rng rng(5);
  const sim::AvailabilityTrace trace = RandomTrace(rng);
  const auto arrivals = Arrivals(0.3, trace.end_s, {.spread = Spread::kGamma});
  for (const System system : kSystems) {
    const SpotReport a = MustRun(trace, arrivals, {.system = system});
    const SpotReport b = MustRun(trace, arrivals, {.system = system});
    EXPECT_EQ(a.latency_s, b.latency_s);
    EXPECT_EQ(a.moved_bytes, b.moved_bytes);
  }
}

TEST(SpotSimTest, SaysWhatCannotWork) {
  const auto small = SimulateSpot(Gpt(), {}, sim::ConstantAvailability(2, 100), {}, {});
  EXPECT_EQ(small.status().message(),
            "the model needs 12 devices, the trace never has more than 8");
  const std::vector<double> unordered = {2, 1};
  EXPECT_FALSE(SimulateSpot(Gpt(), {}, sim::ConstantAvailability(6, 100), unordered, {}).ok());
}

}  // namespace
}  // namespace millrace::experiments::spotserve
