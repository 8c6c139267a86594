#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/rng.h"
#include "sim/fast/service.h"

namespace millrace::sim {
namespace {

using cluster::DispatchPolicy;

class FixedCost : public cost::StepCost {
 public:
  explicit FixedCost(double seconds) : seconds_(seconds) {}
  double Seconds(const cost::BatchShape& batch) const override {
    return batch.empty() ? 0 : seconds_;
  }

 private:
  const double seconds_;
};

// 1 ms, plus 10 us per prompt token and 100 us per decode.
class LinearCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& batch) const override {
    return 1e-3 + 1e-5 * static_cast<double>(batch.prefill_tokens) + 1e-4 * batch.decode_sequences;
  }
};

InstanceOptions OptionsOf(std::vector<const cost::StepCost*> stages) {
  InstanceOptions options;
  options.stages = std::move(stages);
  options.scheduler.num_blocks = 1 << 12;
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = 1024;
  options.scheduler.max_model_len = 4096;
  options.scheduler.prefix_caching = false;
  return options;
}

struct Observed {
  ServiceReport report;
  std::vector<StepRecord> steps;
};

Observed RunWith(const ServiceOptions& options, SyntheticOptions workload) {
  auto service = Service::Create(options);
  EXPECT_TRUE(service.ok()) << service.status().ToString();
  Observed run;
  (*service)->OnStep([&run](int, const StepRecord& record) { run.steps.push_back(record); });
  run.report = (*service)->Run(*NewSynthetic(std::move(workload)));
  return run;
}

constexpr double kAtOnce = std::numeric_limits<double>::infinity();

TEST(InstanceTest, OneStageRunsStepAfterStep) {
  const FixedCost cost(0.010);
  const Observed run =
      RunWith({.instances = {OptionsOf({&cost})}},
              {.requests = 3, .rate = kAtOnce, .prompt = {.a = 8}, .output = {.a = 4}});
  // One sequence a step: 3 requests of 4 tokens each are 12 steps of 10 ms.
  ASSERT_EQ(run.steps.size(), 12u);
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_EQ(run.steps[i].begin[0].ns, static_cast<int64_t>(i) * 10'000'000);
    EXPECT_EQ(run.steps[i].end[0].ns, static_cast<int64_t>(i + 1) * 10'000'000);
  }
  EXPECT_DOUBLE_EQ(run.report.latency.ttft.min(), 0.01);
  EXPECT_DOUBLE_EQ(run.report.latency.ttft.max(), 0.09);  // FCFS: the third after eight steps
  EXPECT_DOUBLE_EQ(run.report.latency.tpot.mean(), 0.01);
  EXPECT_DOUBLE_EQ(run.report.busy_share[0][0], 1);
  EXPECT_EQ(run.report.use[0].sequences, 12u);
  EXPECT_EQ(run.report.use[0].prefill_tokens, 24u);
  EXPECT_EQ(run.report.use[0].full_of_sequences, 12u);
}

TEST(InstanceTest, AStepTakesAsLongAsThePaceSays) {
  const FixedCost cost(0.010);
  std::vector<cost::PaceStretch> past(6, {1, 0.010, 0.010});
  past[3].took_s = 0.030;  // stalls for 20 ms, 30 ms into the recording
  const auto pace = cost::Pace::Create(past);
  ASSERT_TRUE(pace.ok());
  InstanceOptions options = OptionsOf({&cost});
  options.pace = &*pace;
  options.pace_from_s = 2 * 0.080 + 0.005;  // the recording repeats
  const Observed run =
      RunWith({.instances = {options}},
              {.requests = 1, .rate = kAtOnce, .prompt = {.a = 8}, .output = {.a = 6}});
  ASSERT_EQ(run.steps.size(), 6u);
  const double took_ms[] = {10, 10, 30, 10, 10, 10};
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR((run.steps[i].end[0] - run.steps[i].begin[0]).seconds() * 1e3, took_ms[i], 2e-3)
        << i;
  }
}

TEST(ServiceTest, TheFrontEndIsInTheFirstTokensTimeAndInNoOther) {
  const FixedCost cost(0.010);
  const SyntheticOptions workload{.requests = 4, .rate = 1, .prompt = {.a = 8}, .output = {.a = 5}};
  const Observed bare = RunWith({.instances = {OptionsOf({&cost})}}, workload);
  const Observed served =
      RunWith({.instances = {OptionsOf({&cost})}, .front_end = Duration::Millis(3)}, workload);
  EXPECT_NEAR(served.report.latency.ttft.mean(), bare.report.latency.ttft.mean() + 0.003, 1e-9);
  EXPECT_NEAR(served.report.latency.tpot.mean(), bare.report.latency.tpot.mean(), 1e-9);
  EXPECT_NEAR(served.report.latency.e2e.mean(), bare.report.latency.e2e.mean() + 0.003, 1e-9);
}

TEST(ServiceTest, AnArrivalDuringAStepTakesTimeFromIt) {
  const FixedCost cost(0.010);
  InstanceOptions options = OptionsOf({&cost});
  options.arrival_s = 0.001;
  const Observed run =
      RunWith({.instances = {options}},
              {.requests = 3, .rate = kAtOnce, .prompt = {.a = 8}, .output = {.a = 2}});
  ASSERT_EQ(run.steps.size(), 6u);
  // The first finds no step in flight. The others arrive during its first step; their time is added
  // after it.
  EXPECT_EQ(run.steps[0].begin[0].ns, 0);
  for (int64_t i = 1; i < 6; ++i) {
    EXPECT_EQ(run.steps[i].begin[0].ns, 2'000'000 + i * 10'000'000) << i;
  }
}

// Orca section 4.2: as many batches in flight as there are workers; with equal stages, no stage is
// idle between two batches.
TEST(InstanceTest, EqualStagesHaveNoBubbles) {
  const FixedCost cost(0.005);
  for (int stages = 1; stages <= 4; ++stages) {
    const Observed run =
        RunWith({.instances = {OptionsOf(std::vector<const cost::StepCost*>(stages, &cost))}},
                {.requests = 12, .rate = kAtOnce, .prompt = {.a = 8}, .output = {.a = 5}});
    ASSERT_EQ(run.steps.size(), 60u);
    // Twelve requests form whole groups of as many as there are stages. Step i enters stage s at (i
    // + s) periods: once started, every stage is always busy.
    for (size_t i = 0; i < run.steps.size(); ++i) {
      for (int s = 0; s < stages; ++s) {
        ASSERT_EQ(run.steps[i].begin[s].ns, static_cast<int64_t>(i + s) * 5'000'000)
            << stages << " stages, step " << i << ", stage " << s;
      }
    }
    // A sequence is in one batch at a time: its tokens are one full pass apart.
    EXPECT_DOUBLE_EQ(run.report.latency.itl.min(), 0.005 * stages);
  }
}

TEST(InstanceTest, TheSlowestStageSetsThePace) {
  const FixedCost fast(0.002), slow(0.006);
  auto options = OptionsOf({&fast, &slow, &fast});
  options.hop_s = 0.001;
  const Observed run =
      RunWith({.instances = {options}},
              {.requests = 6, .rate = kAtOnce, .prompt = {.a = 8}, .output = {.a = 10}});
  ASSERT_EQ(run.steps.size(), 60u);
  EXPECT_EQ(run.steps[0].begin[1].ns, 3'000'000);
  EXPECT_EQ(run.steps[0].begin[2].ns, 10'000'000);
  EXPECT_EQ(run.steps[0].end[2].ns, 12'000'000);
  for (size_t i = 1; i < run.steps.size(); ++i) {
    EXPECT_EQ((run.steps[i].begin[1] - run.steps[i - 1].begin[1]).ns, 6'000'000) << i;
  }
}

TEST(InstanceTest, CountsKvOverTime) {
  const FixedCost cost(0.010);
  auto options = OptionsOf({&cost});
  options.scheduler.num_blocks = 64;
  // 16 prompt tokens fill a block; the second output token opens the next; 31 tokens in total.
  const Observed run =
      RunWith({.instances = {options}},
              {.requests = 1, .rate = kAtOnce, .prompt = {.a = 16}, .output = {.a = 15}});
  const InstanceUse& use = run.report.use[0];
  EXPECT_EQ(use.kv_blocks, 64);
  EXPECT_EQ(use.kv_blocks_peak, 2);
  EXPECT_NEAR(use.kv_block_seconds, 0.01 * 1 + 0.14 * 2, 1e-9);
}

TEST(InstanceTest, AShortPoolPreempts) {
  const FixedCost cost(0.010);
  auto options = OptionsOf({&cost});
  options.scheduler.max_num_seqs = 8;
  options.scheduler.num_blocks = 12;
  options.scheduler.max_model_len = 128;
  const Observed run =
      RunWith({.instances = {options}},
              {.requests = 8, .rate = kAtOnce, .prompt = {.a = 20}, .output = {.a = 60}});
  EXPECT_EQ(run.report.latency.requests, 8u);
  EXPECT_EQ(run.report.latency.output_tokens, 480u);
  EXPECT_GT(run.report.stats[0].preemptions_recompute, 0u);
  EXPECT_GE(run.report.use[0].kv_blocks_peak, 11);
}

// A hash of every record, in nanoseconds.
uint64_t Fingerprint(const Observed& run) {
  uint64_t hash = run.report.events;
  for (const StepRecord& step : run.steps) {
    hash = HashCounter(hash, step.id.value());
    hash = HashCounter(hash, static_cast<uint64_t>(step.end.back().ns));
    hash = HashCounter(hash, static_cast<uint64_t>(step.batch.tokens()));
  }
  return HashCounter(hash, std::bit_cast<uint64_t>(run.report.latency.e2e.sum()));
}

TEST(ServiceTest, ASeedIsARun) {
  const LinearCost cost;
  for (const DispatchPolicy policy : {DispatchPolicy::kRoundRobin, DispatchPolicy::kFewestRequests,
                                      DispatchPolicy::kRandom, DispatchPolicy::kPredictedTime}) {
    auto options = OptionsOf({&cost, &cost});
    options.scheduler.max_num_seqs = 16;
    const ServiceOptions service{.instances = {options, options, options}, .dispatch = policy};
    const auto run = [&](uint64_t seed) {
      return Fingerprint(
          RunWith(service, {.requests = 500,
                            .rate = 100,
                            .burstiness = 0.5,
                            .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 900},
                            .output = {.kind = LengthSpec::Kind::kLognormal, .a = 40, .b = 20},
                            .seed = seed}));
    };
    EXPECT_EQ(run(1), run(1));
    EXPECT_NE(run(1), run(2));
  }
}

TEST(ServiceTest, PredictedTimeKeepsShortPromptsFromLongOnes) {
  const LinearCost cost;
  auto options = OptionsOf({&cost});
  options.scheduler.max_num_batched_tokens = 4096;
  const auto p90 = [&](DispatchPolicy policy) {
    const Observed run = RunWith({.instances = {options, options}, .dispatch = policy},
                                 {.requests = 20'000,
                                  .rate = 90,
                                  .lengths = {{16, 1}, {16, 1}, {16, 1}, {16, 1}, {4000, 1}},
                                  .draw_lengths = true});
    return run.report.latency.ttft.mean();
  };
  const double fewest = p90(DispatchPolicy::kFewestRequests);
  EXPECT_LT(p90(DispatchPolicy::kPredictedTime), fewest);
  EXPECT_LT(fewest, p90(DispatchPolicy::kRandom));
}

TEST(ServiceTest, SamplesTheLoadEvenlyInBoundedMemory) {
  const FixedCost cost(0.001);
  const Observed run = RunWith({.instances = {OptionsOf({&cost})}},
                               {.requests = 5000, .rate = 2000, .prompt = {.a = 8}});
  const auto& load = run.report.load;
  ASSERT_LE(load.size(), LoadSampler::kSamplesMax);
  ASSERT_GE(load.size(), LoadSampler::kSamplesMax / 2);
  for (size_t i = 1; i < load.size(); ++i) {
    EXPECT_EQ(load[i].arrived - load[i - 1].arrived, load[1].arrived - load[0].arrived);
  }
  // Requests arrive twice as fast as the service can work: in the end half of them wait.
  EXPECT_NEAR(static_cast<double>(load.back().waiting), 2500, 150);
}

}  // namespace
}  // namespace millrace::sim
