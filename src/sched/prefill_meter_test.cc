#include "sched/prefill_meter.h"

#include <gtest/gtest.h>

namespace millrace::sched {
namespace {

class Meter : public ::testing::Test {
 protected:
  static Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }
  void Submit(uint64_t step, int tokens, double at) {
    StepPlan plan;
    plan.id = StepId(step);
    plan.tokens.resize(static_cast<size_t>(tokens));
    timer_.Submitted(plan, At(at));
  }
  bool Done(uint64_t step, double at) {
    const auto timed = timer_.Done(StepId(step), At(at));
    return timed && meter_.Ended(*timed);
  }
  double rate() const { return meter_.costs().prefill_tokens_per_s; }

  StepTimer timer_;
  PrefillMeter meter_{PreemptionCosts{.prefill_tokens_per_s = 1000}};
};

TEST_F(Meter, IsAMovingAverage) {
  Submit(1, 200, 1);
  EXPECT_TRUE(Done(1, 1.1));
  EXPECT_NEAR(rate(), 1000 + 0.1 * (2000 - 1000), 1e-6);
  for (uint64_t step = 2; step < 200; ++step) {
    Submit(step, 200, static_cast<double>(step));
    EXPECT_TRUE(Done(step, static_cast<double>(step) + 0.1));
  }
  EXPECT_NEAR(rate(), 2000, 1);
}

TEST_F(Meter, WhatWasMeasuredDoesNotDependOnTheFirstGuess) {
  EXPECT_FALSE(meter_.measured_tokens_per_s());
  Submit(1, 200, 1);
  Done(1, 1.1);
  EXPECT_NEAR(*meter_.measured_tokens_per_s(), 2000, 1e-6);
  Submit(2, 400, 2);
  Done(2, 2.1);
  EXPECT_NEAR(*meter_.measured_tokens_per_s(), 3000, 1e-6);
}

TEST_F(Meter, IgnoresSmallAndUnknownSteps) {
  Submit(1, 63, 1);
  EXPECT_FALSE(Done(1, 2));
  EXPECT_FALSE(Done(7, 3));
  EXPECT_FALSE(Done(1, 4)) << "twice";
  EXPECT_EQ(rate(), 1000);
}

// Two stages of 100 ms each: a step of 200 tokens takes 200 ms, and one ends every 100 ms.
TEST_F(Meter, MeasuresThroughputWithSeveralStepsInFlight) {
  Submit(0, 200, 0);
  double at = 0.1;
  for (uint64_t step = 1; step < 200; ++step, at += 0.1) {
    Submit(step, 200, at);
    Done(step - 1, at + 0.1);
  }
  EXPECT_NEAR(rate(), 2000, 1);
}

}  // namespace
}  // namespace millrace::sched
