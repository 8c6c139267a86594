// From a row of logits to a token: a pure function of (logits, parameters, seed, position). There
// is no stream of random numbers, so replay after preemption, batching and migration agree by
// construction (architecture promise 1). The one definition for Device::Choose and for the stage's
// sampler, which changes the logits before.
//
// A TokenChooser is owned and used by one thread; the functions may be called by any.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "tensor/choose_spec.h"

namespace millrace::tensor {

// The index of the largest logit, the smallest index on ties; nullopt when one is NaN or none is
// above -inf.
std::optional<TokenId> ArgMax(std::span<const float> logits);

// The order of tokens from the likeliest on; ties go to the smaller id.
struct Likelier {
  std::span<const float> logits;
  bool operator()(TokenId a, TokenId b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// A weight of at most 1 in units of 2^-40, to the nearest: sums of them are the same in any order.
inline uint64_t UnitsOf(float weight) {
  constexpr double kShift = 0x1p52;  // leaves units in the lowest bits
  return std::bit_cast<uint64_t>(weight * 0x1p40 + kShift) - std::bit_cast<uint64_t>(kShift);
}
// REQUIRES: at most 2^23 weights.
uint64_t SumOfWeights(std::span<const float> weights);

class TokenChooser {
 public:
  // nullopt as of ArgMax.
  std::optional<TokenId> Choose(std::span<const float> logits, const ChooseSpec& how);

 private:
  // `top` is the largest logit.
  TokenId Draw(std::span<const float> logits, float top, const ChooseSpec& how);
  TokenId DrawInVocabularyOrder(const ChooseSpec& how);
  std::pair<int, uint64_t> KeepLikeliest(std::span<const float> logits, const ChooseSpec& how);
  int Gather(float least);
  // The random place of a draw among `mass` units. REQUIRES: mass > 0.
  static uint64_t PlaceIn(uint64_t mass, const ChooseSpec& how);
  // The weights of a run that starts at token `first`.
  static constexpr size_t kRun = 256;
  std::span<const float> Run(size_t first) const {
    return std::span(weights_).subspan(first, std::min(kRun, weights_.size() - first));
  }

  // Kept to reuse their memory.
  std::vector<TokenId> order_;
  std::vector<float> weights_;
  std::vector<uint64_t> sums_;  // of runs
};

}  // namespace millrace::tensor
