// The product's trial (sim/fast/trial.h) against the closed forms of a queue and against the
// imitation of DistServe's simulator, where their models meet.
#include "sim/fast/trial.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "experiments/lib/distserve/queueing.h"
#include "experiments/lib/distserve/simdistserve.h"
#include "sim/fast/testing_trials.h"

namespace millrace::experiments::distserve {
namespace {

// DistServe section 3.1: uniform prompts that each fill a batch.
TEST(TrialAgainstOthers, AgreesWithTheMd1Formulas) {
  const auto uniform = [](Rng&) { return std::make_pair(512, 1); };
  for (const double load : {0.3, 0.6, 0.9}) {
    const auto requests = sim::Poisson(1'000'000, load, 11, uniform);
    EXPECT_NEAR(sim::MeanTtft(sim::RunOk(sim::PrefillOnly({&sim::kSecondPerPrompt}), requests)) /
                    *Md1MeanTtft({load, 1}),
                1, 0.02)
        << load;
    EXPECT_NEAR(sim::MeanTtft(sim::RunOk(
                    sim::PrefillOnly({&sim::kHalfPerPrompt, &sim::kHalfPerPrompt}), requests)) /
                    *Md1InterOpTtft({load, 1}, 2),
                1, 0.02)
        << load;
  }
}

// With unlimited batches and memory and a free transfer, the trial and the imitation of the
// artifact are the same system. Only the meaning of the output length differs by one token.
TEST(TrialAgainstOthers, EqualsTheArtifactWhereTheirModelsMeet) {
  const auto lengths = [](Rng& rng) {
    return std::make_pair(static_cast<int>(rng.Between(20, 1500)),
                          static_cast<int>(rng.Between(2, 400)));
  };
  const auto requests = sim::Poisson(1000, 2, 5, lengths);
  std::vector<SimDistServeRequest> same;
  for (const auto& r : requests) {
    same.push_back({r.arrival_s * 1e3, r.prompt_tokens, r.output_tokens - 1});
  }
  const auto artifact = SimulateSimDistServe(
      {.prefill = sim::kOpt13bTp1, .decode = sim::kOpt13bTp1, .decode_tokens_max = 10'000'000},
      same);
  ASSERT_TRUE(artifact.ok());
  const sim::TrialInstance instance{{&sim::kOpt13b}, sim::kAmple};
  const auto report = sim::RunOk({.prefill = instance,
                                  .decode = instance,
                                  .prefill_batch_tokens = 10'000'000,
                                  .sequences_max = 100'000},
                                 requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_NEAR(report.times[i].ttft_s * 1e3, artifact->times[i].ttft_ms, 1e-6) << i;
    ASSERT_NEAR(report.times[i].tpot_s * 1e3, artifact->times[i].tpot_ms, 1e-6) << i;
  }
}

TEST(TrialAgainstOthers, ColocatedEqualsTheArtifactsColocated) {
  const auto lengths = [](Rng& rng) {
    return std::make_pair(static_cast<int>(rng.Between(20, 1500)),
                          static_cast<int>(rng.Between(2, 400)));
  };
  const auto requests = sim::Poisson(500, 1, 6, lengths);
  std::vector<SimDistServeRequest> same;
  for (const auto& r : requests) {
    same.push_back({r.arrival_s * 1e3, r.prompt_tokens, r.output_tokens - 1});
  }
  const auto artifact = SimulateSimDistServe(
      {.colocated = true, .prefill = sim::kOpt13bTp1, .decode_tokens_max = 10'000'000}, same);
  ASSERT_TRUE(artifact.ok());
  const auto report = sim::RunOk({.mode = sim::TrialMode::kColocated,
                                  .prefill = {{&sim::kOpt13b}, sim::kAmple},
                                  .prefill_batch_tokens = 10'000'000,
                                  .sequences_max = 100'000},
                                 requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_NEAR(report.times[i].ttft_s * 1e3, artifact->times[i].ttft_ms, 1e-6) << i;
    ASSERT_NEAR(report.times[i].tpot_s * 1e3, artifact->times[i].tpot_ms, 1e-6) << i;
  }
}

}  // namespace
}  // namespace millrace::experiments::distserve
