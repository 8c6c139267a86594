#include "tensor/sample.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "tensor/cpu/elementwise.h"

namespace millrace::tensor {

// Uses independent lanes, because a single running maximum would not be vectorised.
std::optional<TokenId> ArgMax(std::span<const float> logits) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr size_t kLanes = 32;
  float best[kLanes];
  int nan[kLanes] = {};
  std::fill_n(best, kLanes, kNone);
  auto see = [&](size_t lane, float x) {
    best[lane] = x > best[lane] ? x : best[lane];
    nan[lane] |= x != x;
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) see(lane, logits[i + lane]);
  }
  for (; i < logits.size(); ++i) see(0, logits[i]);
  const float peak = *std::max_element(best, best + kLanes);
  const bool any_nan = std::any_of(nan, nan + kLanes, [](int n) { return n != 0; });
  if (any_nan || peak == kNone) return std::nullopt;
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), peak) - logits.begin());
}

std::optional<TokenId> TokenChooser::Choose(std::span<const float> logits, const ChooseSpec& how) {
  const std::optional<TokenId> best = ArgMax(logits);
  if (!best || how.temperature == 0 || how.top_k == 1) return best;
  const uint64_t bits = HashCounter(how.seed, static_cast<uint64_t>(how.position));
  return Draw(logits, logits[static_cast<size_t>(*best)], how, UnitDouble(bits));
}

// Inverse of the cumulative distribution over the kept tokens: in vocabulary order if no rank limit
// applies (then no sort is needed), else likeliest first.
TokenId TokenChooser::Draw(std::span<const float> logits, float top, const ChooseSpec& how,
                           double uniform) {
  const auto inverse_temperature = static_cast<float>(1.0 / how.temperature);
  weights_.resize(logits.size());
  double total = 0;
  ExpRow(logits, top, inverse_temperature, weights_.data());
  for (float w : weights_) total += w;
  if (how.top_k == 0 && how.top_p >= 1) {
    return DrawInVocabularyOrder(static_cast<float>(how.min_p), uniform);
  }
  const auto [kept, mass] = KeepLikeliest(logits, how, total);
  double left = uniform * mass;
  for (int i = 0; i < kept; ++i) {
    if ((left -= weights_[static_cast<size_t>(order_[i])]) < 0) return order_[i];
  }
  return order_[kept - 1];
}

TokenId TokenChooser::DrawInVocabularyOrder(float min_weight, double uniform) const {
  double mass = 0;
  for (float w : weights_) mass += w >= min_weight ? w : 0;
  double left = uniform * mass;
  TokenId last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const float w = weights_[i];
    if (w < min_weight || w == 0) continue;
    last = static_cast<TokenId>(i);
    if ((left -= w) < 0) break;
  }
  return last;
}

// Moves the tokens that top-k, top-p (of what top-k leaves) and min-p keep to the head of order_;
// returns their number and weight. Sorts only as much of the head as needed.
std::pair<int, double> TokenChooser::KeepLikeliest(std::span<const float> logits,
                                                   const ChooseSpec& how, double total) {
  const auto vocab = static_cast<int>(logits.size());
  const int limit = how.top_k > 0 ? std::min(how.top_k, vocab) : vocab;
  const auto min_weight = static_cast<float>(how.min_p);  // the top token's weight is 1
  const Likelier likelier{logits};
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  int sorted = 0;
  auto sort_to = [&](int next) {
    std::partial_sort(order_.begin() + sorted, order_.begin() + next, order_.end(), likelier);
    sorted = next;
  };
  if (limit < vocab) {
    sort_to(limit);
    total = 0;
    for (int i = 0; i < limit; ++i) total += weights_[static_cast<size_t>(order_[i])];
  }
  int kept = 0;
  double mass = 0;
  for (; kept < limit; ++kept) {
    if (kept == sorted) sort_to(std::min(limit, std::max(64, sorted * 8)));
    const float w = weights_[static_cast<size_t>(order_[kept])];
    if (kept > 0 && (mass >= how.top_p * total || w < min_weight)) break;
    mass += w;
  }
  return {kept, mass};
}

}  // namespace millrace::tensor
