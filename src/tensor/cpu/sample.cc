#include "tensor/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "tensor/cpu/elementwise.h"

namespace millrace::tensor {
namespace {

// In eight lanes, which are added pairwise.
double SumOf(std::span<const float> x) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= x.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += x[i + lane];
  }
  for (size_t lane = 0; i < x.size(); ++i, ++lane) lanes[lane] += x[i];
  for (size_t n = 4; n > 0; n /= 2) {
    for (size_t lane = 0; lane < n; ++lane) lanes[lane] += lanes[lane + n];
  }
  return lanes[0];
}

}  // namespace

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
  const float top = logits[static_cast<size_t>(*best)];
  if (std::isinf(top)) return best;  // it has all the weight
  if (!std::isfinite(static_cast<float>(1.0 / how.temperature))) return best;
  const uint64_t bits = HashCounter(how.seed, static_cast<uint64_t>(how.position));
  return Draw(logits, top, how, UnitDouble(bits));
}

// Inverse of the cumulative distribution over the kept tokens: in vocabulary order if no rank limit
// applies (then no sort is needed), else likeliest first.
TokenId TokenChooser::Draw(std::span<const float> logits, float top, const ChooseSpec& how,
                           double uniform) {
  const auto inverse_temperature = static_cast<float>(1.0 / how.temperature);
  weights_.resize(logits.size());
  ExpRow(logits, top, inverse_temperature, weights_.data());
  if (how.top_k == 0 && how.top_p >= 1) {
    return DrawInVocabularyOrder(static_cast<float>(how.min_p), uniform);
  }
  const auto [kept, mass] = KeepLikeliest(logits, how);
  double left = uniform * mass;
  for (int i = 0; i < kept; ++i) {
    if ((left -= weights_[static_cast<size_t>(order_[i])]) < 0) return order_[i];
  }
  return order_[kept - 1];
}

// Finds the run of tokens first, by the sums of runs, and then the token in it: one addition after
// the other over the whole vocabulary would take longer than all else.
TokenId TokenChooser::DrawInVocabularyOrder(float min_weight, double uniform) {
  for (float& w : weights_) w = w >= min_weight ? w : 0;
  sums_.clear();
  double mass = 0;
  for (size_t first = 0; first < weights_.size(); first += kRun) {
    sums_.push_back(SumOf(Run(first)));
    mass += sums_.back();
  }
  double left = uniform * mass;
  size_t run = 0;  // with weight; the last of them if rounding leaves something
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i] == 0) continue;
    run = i;
    if (left < sums_[i]) break;
    left -= sums_[i];
  }
  size_t chosen = run * kRun;
  for (size_t i = run * kRun; i < run * kRun + Run(run * kRun).size(); ++i) {
    if (weights_[i] == 0) continue;
    chosen = i;
    if ((left -= weights_[i]) < 0) break;
  }
  return static_cast<TokenId>(chosen);
}

// Moves the tokens that top-k, top-p (of what top-k leaves) and min-p keep to the head of order_;
// returns their number and weight. The likeliest are mostly few: first only those near the top are
// looked at, then more.
std::pair<int, double> TokenChooser::KeepLikeliest(std::span<const float> logits,
                                                   const ChooseSpec& how) {
  const auto vocab = static_cast<int>(logits.size());
  const int limit = how.top_k > 0 ? std::min(how.top_k, vocab) : vocab;
  const auto min_weight = static_cast<float>(how.min_p);  // the top token's weight is 1
  const double all = limit < vocab ? 0 : SumOf(weights_);
  for (const float least : {1.0f / 64, 1.0f / 4096, 0.0f}) {
    const int candidates = Gather(least);
    if (limit < vocab && candidates < limit) continue;
    int sorted = 0;
    auto sort_to = [&](int next) {
      std::partial_sort(order_.begin() + sorted, order_.begin() + next, order_.end(),
                        Likelier{logits});
      sorted = next;
    };
    double total = all;
    if (limit < vocab) {
      sort_to(limit);
      for (int i = 0; i < limit; ++i) total += weights_[static_cast<size_t>(order_[i])];
    }
    double mass = 0;
    for (int kept = 0; kept < std::min(limit, candidates); ++kept) {
      if (kept == sorted) sort_to(std::min({limit, candidates, std::max(64, sorted * 8)}));
      const float w = weights_[static_cast<size_t>(order_[kept])];
      if (kept > 0 && (mass >= how.top_p * total || w < min_weight)) return {kept, mass};
      mass += w;
    }
    if (candidates >= limit) return {limit, mass};
  }
  return {1, 1.0};  // not reached: at the last, all tokens are candidates
}

// Sets order_ to the tokens of at least that weight; returns their number.
int TokenChooser::Gather(float least) {
  order_.resize(weights_.size());
  size_t count = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    order_[count] = static_cast<TokenId>(i);
    count += weights_[i] >= least;
  }
  order_.resize(count);
  return static_cast<int>(count);
}

}  // namespace millrace::tensor
