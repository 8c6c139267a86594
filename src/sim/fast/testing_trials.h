// Costs, requests and deployments for tests that run trials. Pure; any thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cost/distserve_cost.h"
#include "sim/fast/trial.h"

namespace millrace::sim {

class FunctionCost : public cost::StepCost {
 public:
  explicit FunctionCost(std::function<double(const cost::BatchShape&)> f) : f_(std::move(f)) {}
  double Seconds(const cost::BatchShape& batch) const override { return f_(batch); }

 private:
  std::function<double(const cost::BatchShape&)> f_;
};

// A second per prompt, whatever its length.
inline const FunctionCost kSecondPerPrompt([](const cost::BatchShape& b) {
  return 1.0 * b.prefill_sequences;
});
inline const FunctionCost kHalfPerPrompt([](const cost::BatchShape& b) {
  return 0.5 * b.prefill_sequences;
});

inline const cost::DistServeCoefficients kOpt13bTp1{
    .prefill = {18.10254647486372, 0.1019122572698738, 7.122264314252114e-06},
    .decode_small = {19.934702624895458, 0.0006269356524350583, 0.03850697740828398},
    .decode_large = {7.1661889468253595, 0.0005798000403396046, 0.15831096191764046}};
inline const cost::DistServeCost kOpt13b(kOpt13bTp1, cost::DistServeStage::Released(1, true));

inline constexpr int64_t kAmple = 100'000'000;
inline const TrialLimits kAnyTime{.ttft_s = 1e9, .tpot_s = 1e9};

inline std::vector<TrialRequest> Poisson(int n, double rate, uint64_t seed,
                                         const std::function<std::pair<int, int>(Rng&)>& lengths) {
  Rng rng(seed);
  std::vector<TrialRequest> requests;
  double at = 0;
  for (int i = 0; i < n; ++i) {
    at += -std::log(1 - rng.Uniform()) / rate;
    const auto [prompt, output] = lengths(rng);
    requests.push_back({at, prompt, output});
  }
  return requests;
}

inline TrialReport RunOk(const TrialDeployment& deployment,
                         const std::vector<TrialRequest>& requests,
                         const TrialLimits& limits = kAnyTime) {
  auto report = RunTrial(deployment, requests, limits, true);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return *report;
}

inline double MeanTtft(const TrialReport& report) {
  double sum = 0;
  for (const auto& t : report.times) sum += t.ttft_s;
  return sum / static_cast<double>(report.times.size());
}

inline TrialDeployment PrefillOnly(std::vector<const cost::StepCost*> stages, int prefills = 1) {
  return {.prefill = {std::move(stages), kAmple},
          .prefills = prefills,
          .decodes = 0,
          .prefill_batch_tokens = 512};
}

}  // namespace millrace::sim
