#include "apps/simulate/steady_attainment.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

const LatencyLimits kLimits{.ttft_s = 1, .tpot_s = 0.1, .attainment = 0.9};

// Requests arrive one a second. Each gets a token after `ttft_s` and ten more, `tpot_s` apart.
class SteadyAttainmentTest : public ::testing::Test {
 protected:
  void Serve(SteadyAttainment& run, double ttft_s, double tpot_s) {
    const RequestId id(++requests_);
    Time at = Time{} + Duration::Seconds(static_cast<double>(requests_));
    run.Arrived(id, at, 11);
    for (int token = 0; token <= 10; ++token) {
      at = at + Duration::Seconds(token == 0 ? ttft_s : tpot_s);
      RequestOutput output;
      output.request = id;
      output.tokens = {1};
      if (token == 10) output.finish = FinishReason::kLength;
      run.Heard(output, at);
    }
  }
  uint64_t requests_ = 0;
};

TEST_F(SteadyAttainmentTest, WhileTheClusterFillsNothingCounts) {
  SteadyAttainment run(kLimits, 30);
  for (int i = 0; i < 10; ++i) Serve(run, 0.5, 0.05);
  EXPECT_FALSE(run.decided());
  EXPECT_FALSE(run.kept());
  // Of the twenty that count, two may miss.
  for (int i = 0; i < 2; ++i) Serve(run, 0.5, 0.2);
  for (int i = 0; i < 17; ++i) Serve(run, 0.5, 0.05);
  EXPECT_FALSE(run.decided());
  Serve(run, 0.5, 0.05);
  EXPECT_TRUE(run.decided());
  EXPECT_TRUE(run.kept());
}

TEST_F(SteadyAttainmentTest, TooManyMissesDecideEarly) {
  SteadyAttainment run(kLimits, 30);
  for (int i = 0; i < 10; ++i) Serve(run, 0.5, 0.05);
  Serve(run, 2, 0.05);
  Serve(run, 0.5, 0.2);
  EXPECT_FALSE(run.decided());
  Serve(run, 2, 0.2);
  EXPECT_TRUE(run.decided());
  EXPECT_FALSE(run.kept());
}

TEST_F(SteadyAttainmentTest, MissesOnEmptyMachinesDecideToo) {
  SteadyAttainment run(kLimits, 60);  // twenty while it fills, of which two may miss
  for (int i = 0; i < 3; ++i) Serve(run, 2, 0.05);
  EXPECT_FALSE(run.decided());
  for (int i = 0; i < 2; ++i) Serve(run, 2, 0.05);
  EXPECT_TRUE(run.decided());
  EXPECT_FALSE(run.kept());
}

TEST_F(SteadyAttainmentTest, AMissIsKnownBeforeTheEnd) {
  SteadyAttainment run(kLimits, 3);
  Serve(run, 0.5, 0.05);
  run.Arrived(RequestId(9), Time{}, 11);
  RequestOutput token;
  token.request = RequestId(9);
  token.tokens = {1};
  run.Heard(token, Time{} + Duration::Seconds(0.5));
  run.Heard(token, Time{} + Duration::Seconds(1.4));
  EXPECT_FALSE(run.decided());
  run.Heard(token, Time{} + Duration::Seconds(1.6));  // ten gaps may take a second
  EXPECT_TRUE(run.decided());
  EXPECT_FALSE(run.kept());
}

TEST_F(SteadyAttainmentTest, WhatHasNotEndedMisses) {
  SteadyAttainment run(kLimits, 30);
  for (int i = 0; i < 28; ++i) Serve(run, 0.5, 0.05);
  EXPECT_TRUE(run.decided());  // 18 of at most 20
  EXPECT_TRUE(run.kept());
  SteadyAttainment unheard(kLimits, 3);
  for (uint64_t i = 1; i <= 3; ++i) unheard.Arrived(RequestId(i), Time{}, 11);
  EXPECT_FALSE(unheard.kept());
  RequestOutput error;
  error.request = RequestId(2);
  error.finish = FinishReason::kError;
  unheard.Heard(error, Time{});
  EXPECT_TRUE(unheard.decided());
}

}  // namespace
}  // namespace millrace::apps
