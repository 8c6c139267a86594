#include "sim/fast/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "sim/fast/service.h"
#include "sim/fast/testing_trials.h"

namespace millrace::sim {
namespace {

using cost::BatchShape;

TEST(Trial, BatchesPromptsUpToTheLimitAndLongOnesAlone) {
  // The cost shows how many sequences were batched: 1 s each step.
  const FunctionCost step([](const BatchShape& b) { return b.prefill_sequences > 0 ? 1.0 : 0.0; });
  auto deployment = PrefillOnly({&step});
  const auto report =
      RunOk(deployment, {{0, 600, 1}, {0.1, 200, 1}, {0.2, 300, 1}, {0.3, 100, 1}, {0.4, 9, 1}});
  EXPECT_NEAR(report.times[0].ttft_s, 1, 1e-9);
  EXPECT_NEAR(report.times[1].ttft_s, 1.9, 1e-9);
  EXPECT_NEAR(report.times[2].ttft_s, 1.8, 1e-9) << "200 + 300 go together";
  EXPECT_NEAR(report.times[3].ttft_s, 2.7, 1e-9) << "100 would exceed 512";
}

// Every step takes one second and decodes first, then fills up with prompt tokens to 10 in total.
TEST(Trial, ChunkedPrefillKeepsDecodesGoing) {
  const FunctionCost step([](const BatchShape& b) { return b.empty() ? 0.0 : 1.0; });
  const auto report =
      RunOk({.mode = TrialMode::kChunked, .prefill = {{&step}, kAmple}, .prefill_batch_tokens = 10},
            {{0, 10, 5}, {0.5, 27, 2}});
  EXPECT_NEAR(report.times[0].ttft_s, 1, 1e-9);
  EXPECT_NEAR(report.times[0].tpot_s, 1, 1e-9) << "a token in every step";
  EXPECT_NEAR(report.times[1].ttft_s, 3.5, 1e-9) << "9 tokens a step beside one decode";
}

TEST(Trial, TransferTakesTheLinksTime) {
  const FunctionCost step([](const BatchShape& b) { return b.empty() ? 0.0 : 1.0; });
  TrialDeployment deployment{.prefill = {{&step}, kAmple},
                             .decode = {{&step}, kAmple},
                             .prefill_batch_tokens = 1000,
                             .kv_bytes_per_token = 10,
                             .kv_bytes_per_s = 100,
                             .kv_latency_s = 0.5};
  const auto report = RunOk(deployment, {{0, 20, 2}, {0, 20, 2}});
  EXPECT_NEAR(report.times[0].tpot_s, 2 + 0.5 + 1, 1e-9);
  // The first starts alone at once. The second prompt follows a second later; its KV waits for the
  // link, then for the current step.
  EXPECT_NEAR(report.times[1].ttft_s, 2, 1e-9);
  EXPECT_NEAR(report.times[1].tpot_s, 4.5 - 1 + 1, 1e-9);
}

TEST(Trial, MemoryAdmitsNoMoreThanFits) {
  const FunctionCost step([](const BatchShape& b) { return b.empty() ? 0.0 : 1.0; });
  TrialDeployment deployment{
      .prefill = {{&step}, 100}, .decode = {{&step}, 15}, .prefill_batch_tokens = 1000};
  // 10 + 5 tokens each: only one fits at a time.
  const auto report = RunOk(deployment, {{0, 10, 5}, {0.5, 10, 5}});
  EXPECT_NEAR(report.times[0].tpot_s, 1, 1e-9);
  EXPECT_NEAR(report.times[1].tpot_s * 4, 5 - 2 + 4, 1e-9) << "waits for the end of the first";
  EXPECT_FALSE(RunTrial(deployment, {{0, 12, 5}}, kAnyTime).ok());
  EXPECT_FALSE(RunTrial(deployment, {{0, 101, 1}}, kAnyTime).ok());
}

TEST(Trial, GivesUpAsSoonAsTheShareIsLost) {
  const auto requests = Poisson(2000, 5, 3, [](Rng&) { return std::make_pair(512, 1); });
  const auto deployment = PrefillOnly({&kSecondPerPrompt});
  const TrialLimits limits{.ttft_s = 2, .tpot_s = 1, .give_up_below = 0.9};
  const auto report = RunTrial(deployment, requests, limits);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->gave_up);
  EXPECT_LT(report->met_both, 1800);
  EXPECT_LT(report->end_s, 250);
}

// Prompts of very different length: counting requests sends short ones behind long ones.
TEST(Trial, DispatchByPredictedTimeBeatsCountingRequests) {
  Rng rng(17);
  std::vector<TrialRequest> requests;
  double at = 0;
  while (requests.size() < 20'000) {
    // Bursts of 30 within a second, then silence: an inter-arrival CV of about 13.
    at += -std::log(1 - rng.Uniform()) * 12;
    for (int k = 0; k < 30; ++k) {
      at += rng.Uniform() * 0.05;
      const double normal =
          std::sqrt(-2 * std::log(1 - rng.Uniform())) * std::cos(6.283185307179586 * rng.Uniform());
      const int prompt = std::clamp(static_cast<int>(1469 * std::exp(0.9 * normal)), 16, 7437);
      requests.push_back({at, prompt, 1});
    }
  }
  auto deployment = PrefillOnly({&kOpt13b}, 4);
  std::vector<double> p99;
  for (const auto dispatch : {TrialDispatch::kPredictedTime, TrialDispatch::kFewestRequests}) {
    deployment.dispatch = dispatch;
    std::vector<double> ttft;
    for (const auto& t : RunOk(deployment, requests).times) ttft.push_back(t.ttft_s);
    std::nth_element(ttft.begin(), ttft.begin() + 19'800, ttft.end());
    p99.push_back(ttft[19'800]);
  }
  EXPECT_LT(p99[0], p99[1]);
}

TEST(Trial, TheSameInputGivesTheSameAnswer) {
  const auto requests = Poisson(300, 3, 9, [](Rng& rng) {
    return std::make_pair(static_cast<int>(rng.Between(1, 900)),
                          static_cast<int>(rng.Between(1, 90)));
  });
  const TrialInstance instance{{&kOpt13b, &kOpt13b}, 20'000};
  const TrialDeployment deployment{
      .prefill = instance, .decode = instance, .prefills = 2, .decodes = 3};
  const auto a = RunOk(deployment, requests), b = RunOk(deployment, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(a.times[i].ttft_s, b.times[i].ttft_s);
    ASSERT_EQ(a.times[i].tpot_s, b.times[i].tpot_s);
  }
}

// The same requests through the production scheduler. What a trial leaves out (paging, the exact
// order of chunks) may shift single requests but not the means.
TEST(Trial, ChunkedIsCloseToTheProductionScheduler) {
  class Given : public Workload {
   public:
    explicit Given(const std::vector<TrialRequest>& requests) : requests_(requests) {}
    std::optional<SimRequest> Next() override {
      if (next_ == requests_.size()) return std::nullopt;
      const TrialRequest& r = requests_[next_++];
      return SimRequest{Time{} + Duration::Seconds(r.arrival_s), r.prompt_tokens, r.output_tokens};
    }

   private:
    const std::vector<TrialRequest>& requests_;
    size_t next_ = 0;
  };
  constexpr int kKvTokens = 66144;
  for (const double rate : {0.5, 1.5, 2.5}) {
    const auto requests = Poisson(600, rate, 21, [](Rng& rng) {
      return std::make_pair(static_cast<int>(rng.Between(20, 1500)),
                            static_cast<int>(rng.Between(2, 400)));
    });
    const auto trial = RunOk({.mode = TrialMode::kChunked,
                              .prefill = {{&kOpt13b}, kKvTokens},
                              .prefill_batch_tokens = 512},
                             requests, {.ttft_s = 0.3, .tpot_s = 0.1});
    ServiceOptions options{.limits = {.ttft_s = 0.3, .tpot_s = 0.1}};
    InstanceOptions& instance = options.instances.emplace_back();
    instance.scheduler.num_blocks = kKvTokens / instance.scheduler.block_size;
    instance.scheduler.max_num_seqs = 256;
    instance.scheduler.max_num_batched_tokens = 512;
    instance.scheduler.max_model_len = 2048;
    instance.scheduler.prefix_caching = false;
    instance.stages = {&kOpt13b};
    auto service = Service::Create(options);
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    Given workload(requests);
    const auto real = (*service)->Run(workload).latency;
    double tpot = 0;
    for (const auto& t : trial.times) tpot += t.tpot_s / 600;
    EXPECT_NEAR(MeanTtft(trial) / real.ttft.mean(), 1, 0.05) << rate;
    EXPECT_NEAR(tpot / real.tpot.mean(), 1, 0.05) << rate;
    EXPECT_NEAR(trial.met_both / 600.0, real.attainment(), 0.03) << rate;
  }
}

}  // namespace
}  // namespace millrace::sim
