#include "tensor/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rng.h"
#include "tensor/cpu/elementwise.h"

namespace millrace::tensor {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kFractionBits = 53;  // of a random number, and of top_p

}  // namespace

uint64_t SumOfWeights(std::span<const float> weights) {
  uint64_t sum = 0;
  for (float weight : weights) sum += UnitsOf(weight);
  return sum;
}

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
  return Draw(logits, top, how);
}

uint64_t TokenChooser::PlaceIn(uint64_t mass, const ChooseSpec& how) {
  const uint64_t bits = HashCounter(how.seed, static_cast<uint64_t>(how.position));
  return static_cast<uint64_t>(Wide{bits >> (64 - kFractionBits)} * mass >> kFractionBits);
}

// Inverse of the cumulative distribution over the kept tokens: in vocabulary order if no rank limit
// applies (then no sort is needed), else likeliest first.
TokenId TokenChooser::Draw(std::span<const float> logits, float top, const ChooseSpec& how) {
  const auto inverse_temperature = static_cast<float>(1.0 / how.temperature);
  weights_.resize(logits.size());
  ExpRow(logits, top, inverse_temperature, weights_.data());
  if (how.top_k == 0 && how.top_p >= 1) return DrawInVocabularyOrder(how);
  const auto [kept, mass] = KeepLikeliest(logits, how);
  uint64_t left = PlaceIn(mass, how);
  for (int i = 0; i < kept; ++i) {
    const uint64_t units = UnitsOf(weights_[static_cast<size_t>(order_[i])]);
    if (left < units) return order_[i];
    left -= units;
  }
  MR_CHECK(false) << "the place is outside the mass of " << kept << " tokens";
  return order_[0];
}

// Finds the run of tokens first, by the sums of runs, and then the token in it: one addition after
// the other over the whole vocabulary would take longer than all else.
TokenId TokenChooser::DrawInVocabularyOrder(const ChooseSpec& how) {
  const auto min_weight = static_cast<float>(how.min_p);  // the top token's weight is 1
  for (float& w : weights_) w = w >= min_weight ? w : 0;
  sums_.clear();
  uint64_t mass = 0;
  for (size_t first = 0; first < weights_.size(); first += kRun) {
    sums_.push_back(SumOfWeights(Run(first)));
    mass += sums_.back();
  }
  uint64_t left = PlaceIn(mass, how);
  size_t run = 0;
  for (; left >= sums_[run]; ++run) left -= sums_[run];
  size_t token = run * kRun;
  for (; left >= UnitsOf(weights_[token]); ++token) left -= UnitsOf(weights_[token]);
  return static_cast<TokenId>(token);
}

// Moves the tokens that top-k, top-p (of what top-k leaves) and min-p keep to the head of order_;
// returns their number and weight. The likeliest are mostly few: first only those near the top are
// looked at, then more.
std::pair<int, uint64_t> TokenChooser::KeepLikeliest(std::span<const float> logits,
                                                     const ChooseSpec& how) {
  const auto vocab = static_cast<int>(logits.size());
  const int limit = how.top_k > 0 ? std::min(how.top_k, vocab) : vocab;
  const auto min_weight = static_cast<float>(how.min_p);  // the top token's weight is 1
  const uint64_t all = limit < vocab ? 0 : SumOfWeights(weights_);
  const auto top_p = static_cast<uint64_t>(std::ldexp(how.top_p, kFractionBits));
  for (const float least : {1.0f / 64, 1.0f / 4096, 0.0f}) {
    const int candidates = Gather(least);
    if (limit < vocab && candidates < limit) continue;
    int sorted = 0;
    auto sort_to = [&](int next) {
      std::partial_sort(order_.begin() + sorted, order_.begin() + next, order_.end(),
                        Likelier{logits});
      sorted = next;
    };
    uint64_t total = all;
    if (limit < vocab) {
      sort_to(limit);
      for (int i = 0; i < limit; ++i) total += UnitsOf(weights_[static_cast<size_t>(order_[i])]);
    }
    const Wide enough = Wide{top_p} * total;
    uint64_t mass = 0;
    for (int kept = 0; kept < std::min(limit, candidates); ++kept) {
      if (kept == sorted) sort_to(std::min({limit, candidates, std::max(64, sorted * 8)}));
      const float w = weights_[static_cast<size_t>(order_[kept])];
      const bool is_enough = Wide{mass} << kFractionBits >= enough;
      if (kept > 0 && (is_enough || w < min_weight)) return {kept, mass};
      mass += UnitsOf(w);
    }
    if (candidates >= limit) return {limit, mass};
  }
  return {1, UnitsOf(1)};  // not reached: at the last, all tokens are candidates
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
