// testdata/simdistserve_perreq.csv: the first 200 requests of one run of the artifact's simulator
// (LLMServe/DistServe@82831f16, Apache-2.0) on lengths of the Azure LLM inference trace 2023
// (CC-BY-4.0): OPT-13B, prefill TP 2, decode TP 1, 4 requests/s. The coefficients below are the
// artifact's for A100-80G.
#include "experiments/lib/distserve/simdistserve.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "base/testing/source_path.h"

namespace millrace::experiments::distserve {
namespace {

const cost::DistServeCoefficients kOpt13bTp1{
    .prefill = {18.10254647486372, 0.1019122572698738, 7.122264314252114e-06},
    .decode_small = {19.934702624895458, 0.0006269356524350583, 0.03850697740828398},
    .decode_large = {7.1661889468253595, 0.0005798000403396046, 0.15831096191764046}};
const cost::DistServeCoefficients kOpt13bTp2{
    .prefill = {14.742973695171262, 0.06857720739764, 2.4495727400243586e-06},
    .decode_small = {13.294796350285385, 0.00034109219700723494, 0.06296393225243659},
    .decode_large = {10.638741913126715, 0.00031183369638295723, 0.08562913604102729}};

SimDistServeResult Simulate(const SimDistServeOptions& options,
                            const std::vector<SimDistServeRequest>& requests) {
  auto result = SimulateSimDistServe(options, requests);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return *result;
}

TEST(SimDistServe, OneRequestAloneIsTheClosedForm) {
  const auto result = Simulate({.prefill = kOpt13bTp1, .decode = kOpt13bTp1}, {{0, 512, 10}});
  // The artifact's values.
  EXPECT_NEAR(result.times[0].ttft_ms, 75.199881, 1e-6);
  EXPECT_NEAR(result.times[0].tpot_ms, 22.349299, 1e-6);
  EXPECT_NEAR(result.times[0].e2e_ms, 75.199881 + 10 * 22.349299, 1e-5);
  EXPECT_NEAR(result.makespan_ms, result.times[0].e2e_ms, 1e-9);
}

TEST(SimDistServe, EqualsTheArtifactRequestByRequest) {
  std::ifstream file(SourcePath("experiments/lib/distserve/testdata/simdistserve_perreq.csv"));
  std::vector<SimDistServeRequest> requests;
  std::vector<SimDistServeTimes> expected;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    int id = 0;
    SimDistServeRequest r;
    SimDistServeTimes t;
    ASSERT_EQ(std::sscanf(line.c_str(), "%d,%d,%d,%lf,%lf,%lf,%lf", &id, &r.prompt_tokens,
                          &r.output_tokens, &r.arrival_ms, &t.ttft_ms, &t.tpot_ms, &t.e2e_ms),
              7);
    requests.push_back(r);
    expected.push_back(t);
  }
  ASSERT_EQ(requests.size(), 200u);
  const auto result = Simulate({.prefill = kOpt13bTp2, .decode = kOpt13bTp1}, requests);
  // Requests that end after the last arrival met requests that are not in the file.
  int compared = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].arrival_ms + expected[i].e2e_ms >= requests.back().arrival_ms) continue;
    ++compared;
    EXPECT_NEAR(result.times[i].ttft_ms, expected[i].ttft_ms, 1e-3) << i;
    EXPECT_NEAR(result.times[i].tpot_ms, expected[i].tpot_ms, 1e-3) << i;
    EXPECT_NEAR(result.times[i].e2e_ms, expected[i].e2e_ms, 1e-3) << i;
  }
  EXPECT_GE(compared, 50);
}

// Two stages of equal time: the second prompt enters as soon as the first stage is free.
TEST(SimDistServe, PipelineStagesOverlap) {
  const SimDistServeOptions options{
      .prefill = kOpt13bTp1, .decode = kOpt13bTp1, .prefill_stages = 2};
  const auto alone = Simulate(options, {{0, 512, 1}});
  const double stage_ms = (75.199881 - 1 - 2.0512) / 2 + 2;
  EXPECT_NEAR(alone.times[0].ttft_ms, 2 * stage_ms + 2.0512, 1e-5);
  const auto two = Simulate(options, {{0, 512, 1}, {1, 512, 1}});
  EXPECT_NEAR(two.times[1].ttft_ms, stage_ms + 2.0512 - 1 + alone.times[0].ttft_ms, 1e-5);
}

TEST(SimDistServe, ColocatedPrefillStopsDecode) {
  SimDistServeOptions options{.colocated = true, .prefill = kOpt13bTp1};
  const auto alone = Simulate(options, {{0, 512, 10}});
  const auto disturbed = Simulate(options, {{0, 512, 10}, {100, 512, 10}});
  EXPECT_GT(disturbed.times[0].tpot_ms, alone.times[0].tpot_ms + 6);
  options.colocated = false;
  options.decode = kOpt13bTp1;
  const auto apart = Simulate(options, {{0, 512, 10}, {100, 512, 10}});
  EXPECT_LT(apart.times[0].tpot_ms, alone.times[0].tpot_ms + 1);
}

// Beyond the cap, the requests at the back of the queue wait for a round: the artifact's decode
// batches take turns.
TEST(SimDistServe, DecodeCapMakesRequestsTakeTurns) {
  SimDistServeOptions options{.prefill = kOpt13bTp1, .decode = kOpt13bTp1};
  options.decode_tokens_max = 1100;  // two of 512 tokens, not three
  const std::vector<SimDistServeRequest> three = {{0, 512, 10}, {0, 512, 10}, {0, 512, 10}};
  const auto capped = Simulate(options, three);
  options.decode_tokens_max = SimDistServeOptions::kDecodeTokensMax;
  const auto free = Simulate(options, three);
  EXPECT_NEAR(capped.makespan_ms - capped.times[0].ttft_ms, 15 * 22.76, 0.5);
  EXPECT_NEAR(free.makespan_ms - free.times[0].ttft_ms, 10 * 23.18, 0.5);
}

TEST(SimDistServe, RefusesWhatCouldNeverRun) {
  SimDistServeOptions options{.prefill = kOpt13bTp1, .decode = kOpt13bTp1};
  EXPECT_FALSE(SimulateSimDistServe(options, {{0, 50000, 10}}).ok());
  EXPECT_FALSE(SimulateSimDistServe(options, {{0, 0, 10}}).ok());
  EXPECT_FALSE(SimulateSimDistServe(options, {{5, 10, 10}, {4, 10, 10}}).ok());
  options.prefill_tokens_max = 100;
  const auto result = SimulateSimDistServe(options, {{0, 512, 10}});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("512 prompt tokens"), std::string::npos);
  options.prefill_stages = 0;
  EXPECT_FALSE(SimulateSimDistServe(options, {}).ok());
}

}  // namespace
}  // namespace millrace::experiments::distserve
