#include "cluster/control/parts/output_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace millrace::cluster {
namespace {

constexpr int64_t kNoLimit = 1 << 20;

TEST(OutputEstimate, IsAGuessUntilEnoughAnswersHaveEnded) {
  OutputEstimate estimate;
  EXPECT_EQ(estimate.For(kNoLimit, 0), OutputEstimate::kFirstGuess);
  EXPECT_EQ(estimate.For(5, 0), 5);
  for (size_t i = 1; i < OutputEstimate::kAnswersNeeded; ++i) estimate.Ended(1000);
  EXPECT_EQ(estimate.For(kNoLimit, 0), OutputEstimate::kFirstGuess);
  estimate.Ended(1000);
  EXPECT_EQ(estimate.For(kNoLimit, 0), 1000);
  EXPECT_EQ(estimate.For(700, 0), 700);
}

TEST(OutputEstimate, GrowsWithTheAnswer) {
  OutputEstimate estimate;
  for (int64_t tokens = 1; tokens <= 100; ++tokens) estimate.Ended(tokens);
  EXPECT_EQ(estimate.For(kNoLimit, 0), 80);
  EXPECT_EQ(estimate.For(kNoLimit, 50), 90) << "of those longer than 50";
  EXPECT_EQ(estimate.For(kNoLimit, 95), 190) << "too few were longer";
  EXPECT_EQ(estimate.For(120, 95), 120);
}

// Against sorting the last answers.
TEST(OutputEstimate, IsTheQuantileOfTheLastAnswers) {
  OutputEstimate estimate;
  std::vector<int64_t> answers;
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    answers.push_back(rng.Between(1, 10'000));
    estimate.Ended(answers.back());
    if (i < 20 || rng.Between(0, 9) > 0) continue;
    const int64_t so_far = rng.Between(0, 1) == 0 ? 0 : rng.Between(1, 9000);
    std::vector<int64_t> longer(
        answers.end() - std::min<ptrdiff_t>(std::ssize(answers), OutputEstimate::kAnswersKept),
        answers.end());
    std::erase_if(longer, [so_far](int64_t tokens) { return tokens <= so_far; });
    if (longer.size() < OutputEstimate::kAnswersNeeded) continue;
    std::ranges::sort(longer);
    const auto rank =
        static_cast<size_t>(OutputEstimate::kQuantile * static_cast<double>(longer.size() - 1));
    ASSERT_EQ(estimate.For(kNoLimit, so_far), longer[rank]) << i;
  }
}

}  // namespace
}  // namespace millrace::cluster
