// TokenChooser against the definition in f64: sort everything, add everything, invert.
#include "tensor/cpu/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace millrace::tensor {
namespace {

// Kept tokens in the order in which they are drawn from, with their weights.
std::vector<std::pair<TokenId, double>> Kept(std::span<const float> logits, const ChooseSpec& how) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const bool ranked = how.top_k > 0 || how.top_p < 1;
  if (ranked) std::sort(order.begin(), order.end(), Likelier{logits});
  const float top = logits[static_cast<size_t>(*ArgMax(logits))];
  std::vector<std::pair<TokenId, double>> kept;
  for (const TokenId token : order) {
    const double x = logits[static_cast<size_t>(token)];
    kept.emplace_back(token, std::exp((x - top) / how.temperature));
  }
  if (how.top_k > 0) kept.resize(std::min(kept.size(), static_cast<size_t>(how.top_k)));
  double total = 0, mass = 0;
  for (const auto& [token, weight] : kept) total += weight;
  size_t count = 0;
  while (count < kept.size() && (!ranked || count == 0 || mass < how.top_p * total)) {
    mass += kept[count++].second;
  }
  kept.resize(count);
  std::erase_if(kept, [&](const auto& k) { return k.second < how.min_p; });
  return kept;
}

// The chosen token is the one in whose part of the distribution the random number falls, or its
// neighbour if the number is at the border.
void ExpectInverse(std::span<const float> logits, const ChooseSpec& how, TokenId chosen) {
  const auto kept = Kept(logits, how);
  double mass = 0, before = 0;
  for (const auto& [token, weight] : kept) mass += weight;
  const double place = UnitDouble(HashCounter(how.seed, static_cast<uint64_t>(how.position)));
  for (const auto& [token, weight] : kept) {
    if (token == chosen) {
      EXPECT_GT(weight, 0);
      EXPECT_GE(place * mass, before - 1e-4 * mass);
      EXPECT_LE(place * mass, before + weight + 1e-4 * mass);
      return;
    }
    before += weight;
  }
  FAIL() << "token " << chosen << " is not kept";
}

TEST(TokenChooser, InvertsTheDistribution) {
  Rng rng(5);
  TokenChooser chooser;
  for (int trial = 0; trial < 600; ++trial) {
    std::vector<float> logits(static_cast<size_t>(rng.Between(1, 3000)));
    const double spread = std::array{0.01, 1.0, 8.0, 40.0}[static_cast<size_t>(trial % 4)];
    for (float& x : logits) x = static_cast<float>(rng.Uniform() * spread);
    if (logits.size() > 300) {  // runs without weight, at the end too
      std::fill(logits.begin() + 20, logits.begin() + 290, -std::numeric_limits<float>::infinity());
      std::fill(logits.end() - 5, logits.end(), -std::numeric_limits<float>::infinity());
    }
    ChooseSpec how{.temperature = 0.5 + rng.Uniform(), .seed = 9, .position = trial};
    if (trial % 3 == 1) how.top_k = static_cast<int>(rng.Between(2, 400));
    if (trial % 3 != 0) how.top_p = 0.05 + 0.9 * rng.Uniform();
    if (trial % 5 == 0) how.min_p = 0.2 * rng.Uniform();
    const auto token = chooser.Choose(logits, how);
    ASSERT_TRUE(token.has_value());
    ExpectInverse(logits, how, *token);
  }
}

}  // namespace
}  // namespace millrace::tensor
