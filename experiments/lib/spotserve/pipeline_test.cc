// Compares pipelines on a virtual clock with the latency formula.
#include "experiments/lib/spotserve/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "plan/spot/optimizer.h"
#include "plan/spot/testing.h"

namespace millrace::experiments::spotserve {
namespace {

using plan::spot::ParallelConfig;

const ParallelConfig kGpt{2, 3, 4, 4, 4, 1};

// Runs to the end; returns the time of the last event.
double Drain(Pipeline& pipeline) {
  double now = 0;
  while (const auto next = pipeline.NextEvent()) {
    now = *next;
    pipeline.Advance(now);
  }
  return now;
}

TEST(SpotPipelineTest, BatchTakesTheFormulasTime) {
  const auto profile = plan::spot::PublishedProfile("h6144");
  for (const int n : {1, 2, 3, 4}) {
    std::vector<RequestState> requests(n);
    const auto pipeline = MakeBatchPipeline(profile, kGpt, {}, requests);
    std::vector<int> ids(n);
    for (int i = 0; i < n; ++i) ids[i] = i;
    pipeline->Start(100, ids, false, 128);
    EXPECT_EQ(pipeline->FreeSlots(), 0) << "no request joins a running batch";
    pipeline->Advance(100);
    Drain(*pipeline);
    const int batch = n == 3 ? 4 : n;
    const auto time = Execution(profile, {1, 3, 4, batch, batch, 1});
    for (const RequestState& r : requests) {
      ASSERT_TRUE(r.finish_s.has_value());
      EXPECT_NEAR(*r.finish_s, 100 + time->Total(128) / 1000, 1e-6);
    }
    EXPECT_EQ(pipeline->FreeSlots(), 4);
  }
}

TEST(SpotPipelineTest, AContinuousRequestAloneTakesTheSameTime) {
  for (const char* model : {"6.7B", "h6144", "h7168"}) {
    const auto profile = plan::spot::PublishedProfile(model);
    std::vector<RequestState> requests(1);
    const auto pipeline = MakeContinuousPipeline(profile, kGpt, {}, requests);
    const int id = 0;
    pipeline->Start(0, {&id, 1}, false, 128);
    Drain(*pipeline);
    const auto time = Execution(profile, {1, 3, 4, 1, 1, 1});
    // All but the embedding, which the formula counts once per batch.
    EXPECT_NEAR(*requests[0].finish_s * 1000, time->Total(128) - time->fixed_ms, 1e-3) << model;
  }
}

// The planner's forecast is within 15 % of a saturated pipeline's throughput.
TEST(SpotPipelineTest, ContinuousThroughputIsNearTheForecast) {
  for (const char* model : {"6.7B", "h6144", "h7168"}) {
    const auto profile = plan::spot::PublishedProfile(model);
    for (const ParallelConfig& shape : {ParallelConfig{1, 1, 4, 4}, ParallelConfig{1, 3, 4, 8},
                                        ParallelConfig{1, 2, 8, 8}, ParallelConfig{1, 4, 4, 4}}) {
      const plan::spot::SearchSpace space{
          .devices_min = 1, .batch_max = 8, .batching = plan::spot::BatchRule::kContinuous};
      double forecast = 0;
      for (const auto& c : Pipelines(profile, space, 16)) {
        if (c.config == shape) forecast = c.throughput_per_s;
      }
      ASSERT_GT(forecast, 0);
      std::vector<RequestState> requests(600);
      const auto pipeline = MakeContinuousPipeline(profile, shape, {}, requests);
      int next = 0;
      double now = 0;
      while (next < 600 || pipeline->running() > 0) {
        while (next < 600 && pipeline->FreeSlots() > 0) {
          pipeline->Start(now, {&next, 1}, false, 128);
          ++next;
        }
        now = *pipeline->NextEvent();
        pipeline->Advance(now);
      }
      EXPECT_NEAR(600 / now, forecast, forecast * 0.15) << model << ToString(shape);
    }
  }
}

// Cutting at any time and continuing with the KV loses only the iteration in flight.
TEST(SpotPipelineTest, CutAndResumeConservesTokens) {
  const auto profile = plan::spot::PublishedProfile("h6144");
  for (const bool continuous : {false, true}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Rng rng(seed);
      std::vector<RequestState> requests(4);
      const auto make = continuous ? MakeContinuousPipeline : MakeBatchPipeline;
      std::vector<int> with_kv, without = {0, 1, 2, 3};
      double now = 0;
      const double step_s = BatchTime(profile, kGpt, 4).step_ms / 1000;
      for (int cut = 0; cut < 40 && (!with_kv.empty() || !without.empty()); ++cut) {
        const auto pipeline = make(profile, kGpt, {}, requests);
        auto& start = with_kv.empty() ? without : with_kv;
        const bool has_kv = !with_kv.empty();
        pipeline->Start(now, start, has_kv, 128);
        std::vector<int> done_before;
        for (const auto& r : requests) done_before.push_back(r.done);
        const double until = now + 10 * rng.Uniform();
        while (pipeline->NextEvent().has_value() && *pipeline->NextEvent() <= until) {
          pipeline->Advance(*pipeline->NextEvent());
        }
        const std::vector<int> started = start;
        start.clear();
        for (const Stopped& s : pipeline->Cut(until)) {
          (s.has_kv ? with_kv : without).push_back(s.request);
        }
        for (const int r : started) {
          EXPECT_GE(requests[r].done, done_before[r]);
          EXPECT_LE(requests[r].done, 128);
          EXPECT_EQ(requests[r].finish_s.has_value(), requests[r].done == 128);
          if (has_kv && !requests[r].finish_s.has_value() && !continuous) {
            EXPECT_GE(requests[r].done + 2,
                      std::min(128.0, done_before[r] + (until - now) / step_s))
                << seed;
          }
        }
        now = until;
      }
      for (const auto& r : requests) EXPECT_TRUE(r.finish_s.has_value()) << seed << continuous;
    }
  }
}

}  // namespace
}  // namespace millrace::experiments::spotserve
