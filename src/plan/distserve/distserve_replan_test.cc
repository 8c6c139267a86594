// testdata/azure_conv_2023_30s.csv: Azure's conversation trace (2023, CC-BY-4.0) summed over
// windows of 30 s: requests, context tokens, generated tokens. Made from
// Azure/AzurePublicDataset@b469a113, data/AzureLLMInferenceTrace_conv.csv.
#include "plan/distserve/distserve_replan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/rng.h"
#include "base/testing/source_path.h"

namespace millrace::plan {
namespace {

struct Piece {
  int requests = 0;
  int64_t input = 0, output = 0;
};

std::vector<Piece> AzureConversation() {
  std::ifstream file(SourcePath("src/plan/testdata/azure_conv_2023_30s.csv"));
  std::vector<Piece> pieces;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    Piece p;
    long long input = 0, output = 0;
    if (std::sscanf(line.c_str(), "%d,%lld,%lld", &p.requests, &input, &output) != 3) continue;
    p.input = input;
    p.output = output;
    pieces.push_back(p);
  }
  return pieces;
}

constexpr double kPieceS = 30;

// Replays the pieces in a loop; multiplies lengths by `stretch` from `step_s` on.
std::vector<ReplanReason> Play(ReplanTrigger& trigger, double hours, double step_s = 1e18,
                               double stretch = 1, double rate = 1) {
  const auto pieces = AzureConversation();
  EXPECT_GT(pieces.size(), 100u);
  std::vector<ReplanReason> reasons;
  for (size_t i = 0; static_cast<double>(i) * kPieceS < hours * 3600; ++i) {
    const Piece& p = pieces[i % pieces.size()];
    const double begin_s = static_cast<double>(i) * kPieceS;
    const bool after = begin_s >= step_s;
    const int requests = after ? static_cast<int>(std::lround(p.requests * rate)) : p.requests;
    for (int k = 0; k < requests; ++k) {
      const double at_s = begin_s + kPieceS * k / requests;
      const double input = static_cast<double>(p.input) / p.requests * (after ? stretch : 1);
      const auto reason =
          trigger.Arrived(at_s, static_cast<int>(input), static_cast<int>(p.output / p.requests));
      if (reason) reasons.push_back(*reason);
    }
  }
  return reasons;
}

TEST(ReplanTrigger, AtMostOneFalseAlarmInADayOfLoopedConversation) {
  ReplanTrigger trigger({});
  const auto reasons = Play(trigger, 24);
  EXPECT_LE(reasons.size(), 1u) << (reasons.empty() ? "" : reasons[0].ToString());
  EXPECT_NEAR(static_cast<double>(trigger.windows()), 24 * 12, 1);
}

TEST(ReplanTrigger, SeesAStepOfInputLengthWithinThreeWindows) {
  ReplanTrigger trigger({});
  const double step_s = 4 * 3600 + 100;
  const auto reasons = Play(trigger, 6, step_s, 2);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].what, ReplanReason::What::kInputLength);
  EXPECT_LE(reasons[0].at_s, step_s + 3 * 300);
  EXPECT_NEAR(reasons[0].now.input_tokens / reasons[0].before.input_tokens, 2, 0.3);
  EXPECT_NE(reasons[0].ToString().find("mean input went from"), std::string::npos);
}

TEST(ReplanTrigger, SeesAStepOfRateBothWays) {
  for (const double rate : {2.0, 0.4}) {
    ReplanTrigger trigger({});
    const auto reasons = Play(trigger, 4, 2 * 3600, 1, rate);
    ASSERT_EQ(reasons.size(), 1u) << rate;
    EXPECT_EQ(reasons[0].what, ReplanReason::What::kRate);
    EXPECT_LE(reasons[0].at_s, 2 * 3600 + 3 * 300);
  }
}

// Poisson clusters with an inter-arrival CV near 13, as code completion has.
TEST(ReplanTrigger, BurstsAloneDoNotMakeItFlap) {
  int alarms = 0;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    ReplanTrigger trigger({});
    Rng rng(seed);
    double at = 0;
    while (at < 24 * 3600) {
      at += -std::log(1 - rng.Uniform()) * 12;
      for (int k = 0; k < 30; ++k) {
        at += rng.Uniform() * 0.05;
        alarms += trigger.Arrived(at, 1000, 28).has_value();
      }
    }
  }
  EXPECT_LE(alarms, 5) << "one a day";
}

// Four requests a window, and ten for a mean.
TEST(ReplanTrigger, SeesLongerPromptsOfFewRequests) {
  ReplanTrigger trigger({.window_s = 10, .reference_windows = 3, .requests_min = 10});
  std::optional<ReplanReason> reason;
  double at_s = 0;
  for (; at_s < 300; at_s += 2.5) {
    EXPECT_FALSE(trigger.Arrived(at_s, 100 + static_cast<int>(at_s) % 7, 20)) << at_s;
  }
  for (; !reason && at_s < 600; at_s += 2.5) reason = trigger.Arrived(at_s, 300, 20);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->what, ReplanReason::What::kInputLength);
  EXPECT_LE(reason->at_s, 300 + 90);
}

TEST(ReplanTrigger, SilenceIsAChangeOfRateAndCostsBoundedWork) {
  ReplanTrigger trigger({});
  double at = 0;
  for (; at < 3600; at += 0.5) EXPECT_FALSE(trigger.Arrived(at, 100, 10));
  const auto reason = trigger.Tick(at + 1e9);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->what, ReplanReason::What::kRate);
  EXPECT_LT(trigger.windows(), 30u);
}

TEST(ReplanTrigger, OneOddWindowIsNotEnough) {
  ReplanTrigger trigger({.confirm_windows = 2});
  for (int window = 0; window < 20; ++window) {
    const int input = window == 10 || window == 13 ? 900 : 300;
    for (int k = 0; k < 100; ++k) {
      EXPECT_FALSE(trigger.Arrived(window * 300.0 + k * 3, input, 50)) << window;
    }
  }
}

}  // namespace
}  // namespace millrace::plan
