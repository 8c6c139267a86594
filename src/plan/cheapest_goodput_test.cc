#include "plan/cheapest_goodput.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/roles/testing_roles.h"

namespace millrace::plan {
namespace {

// A fast computer and three slower ones of a third of its price; each holds the model.
GoodputProblem OneFastThreeSlow() {
  const TestNode fast{.kind = "f", .max_layers = 4, .prompt_s = 4e-6, .step_s = 1e-3};
  const TestNode slow{.kind = "s", .max_layers = 4, .prompt_s = 8e-6, .step_s = 2e-3};
  GoodputProblem problem = RoleTestProblem(4, {fast, slow, slow, slow}, 1e8, 2);
  problem.ttft_s = 1;
  problem.tpot_s = 0.1;
  return problem;
}
const std::vector<double> kPrices = {3, 1, 1, 1};

double PriceOf(const Plan& plan) {
  double price = 0;
  for (const StagePlan& stage : plan.stages) {
    price += kPrices[static_cast<size_t>(stage.nodes.front())];
  }
  return price;
}

TEST(CheapestGoodput, LeavesOutWhatTheRateDoesNotNeed) {
  const GoodputProblem problem = OneFastThreeSlow();
  const auto options = DefaultCheapestOptions();
  double before = 0;
  for (const double rate : {1.0, 20.0, 45.0}) {
    const auto found = CheapestGoodput(problem, kPrices, rate, options);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_GE(found->estimate.requests_per_s, rate);
    EXPECT_GE(PriceOf(found->plan), before) << rate;
    before = PriceOf(found->plan);
    EXPECT_EQ(found->plan.stages.size() + found->plan.unused.size(), 4u);
    EXPECT_TRUE(rate > 1 || PriceOf(found->plan) == 1);
  }
}

TEST(CheapestGoodput, TooHighARateIsAnErrorWithTheHighest) {
  const auto found = CheapestGoodput(OneFastThreeSlow(), kPrices, 1e4, DefaultCheapestOptions());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(found.status().message().find("1e+04 are wanted"), std::string::npos)
      << found.status().message();
}

// Where the estimate promises too much, more machines are kept.
TEST(CheapestGoodput, APlanThatDoesNotKeepTheRateGetsMoreMachines) {
  auto options = DefaultCheapestOptions();
  options.keeps = [](const Plan& plan) -> Result<bool> { return plan.stages.size() >= 2; };
  const auto found = CheapestGoodput(OneFastThreeSlow(), kPrices, 15, options);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_GE(found->plan.stages.size(), 2u);
  // A plan that cannot be simulated is no answer, and others are tried.
  options.keeps = [](const Plan& plan) -> Result<bool> {
    if (plan.stages.size() < 2) return FailedPrecondition("no KV memory");
    return true;
  };
  const auto other = CheapestGoodput(OneFastThreeSlow(), kPrices, 15, options);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_GE(other->plan.stages.size(), 2u);
  options.keeps = [](const Plan&) -> Result<bool> { return false; };
  EXPECT_FALSE(CheapestGoodput(OneFastThreeSlow(), kPrices, 15, options).ok());
}

}  // namespace
}  // namespace millrace::plan
