#include "plan/distserve/distserve_prefill.h"

#include <gtest/gtest.h>

#include "cost/distserve_cost.h"

namespace millrace::plan {
namespace {

class Fixed : public cost::StepCost {
 public:
  Fixed(double fixed, double per_token) : fixed_(fixed), per_token_(per_token) {}
  double Seconds(const cost::BatchShape& b) const override {
    return fixed_ + per_token_ * static_cast<double>(b.prefill_tokens);
  }

 private:
  double fixed_, per_token_;
};

TEST(SaturatingPrompt, ClosedFormOfALinearCost) {
  // n / (f + c n) reaches 0.9 of its value at 1000 tokens, 1000 / 1.1: n = 0.9 f / (1.1 - 0.9).
  const Fixed cost(100, 1);
  EXPECT_EQ(SaturatingPromptTokens({&cost}, 1000), 450);
  const Fixed free(0, 1);
  EXPECT_EQ(SaturatingPromptTokens({&free}, 1000), 1);
  const Fixed faster(1, 0.5);
  EXPECT_EQ(SaturatingPromptTokens({&faster, &cost}, 1000), 450) << "the slowest stage decides";
}

// DistServe reports 512 tokens for OPT-13B on A100.
TEST(SaturatingPrompt, Opt13bOnA100IsNear512) {
  const cost::DistServeCost cost(
      {.prefill = {18.10254647486372, 0.1019122572698738, 7.122264314252114e-06}});
  const int tokens = SaturatingPromptTokens({&cost}, 2048);
  EXPECT_GT(tokens, 450);
  EXPECT_LT(tokens, 620);
}

}  // namespace
}  // namespace millrace::plan
