// HashModel: a layered model without arithmetic. A token's state goes from layer to layer. Each
// layer writes a key and a value computed from it, and computes the next state from the keys and
// values of every position up to this one. So each token depends on every layer's KV of the whole
// context, as in a transformer, at a cost of a few multiplications per position and layer.
//
// A layer's heads are summed, so each tensor-parallel rank may hold a share of them.
//
// A value; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "core/ids.h"
#include "core/sampling_params.h"

namespace millrace::stage {

struct HashModel {
  int num_layers = 4;
  int vocab_size = 1000;
  int heads = 1;      // KV heads of a layer
  uint64_t seed = 0;  // "weights": models with other seeds give other answers

  uint64_t Embed(TokenId token, int position) const {
    return Mix64(HashCounter(seed ^ static_cast<uint64_t>(token), static_cast<uint64_t>(position)));
  }
  // Key in the low half, value in the high half.
  static uint64_t KeyValue(int layer, int head, uint64_t state, int position) {
    return HashCounter(state, (static_cast<uint64_t>(layer) << 48) ^
                                  (static_cast<uint64_t>(head) << 40) ^
                                  static_cast<uint64_t>(position));
  }
  // One position's share of a layer's sum over heads and positions. Its factors are odd, so a
  // change of one slot always changes the sum.
  static uint64_t Share(uint64_t key_value, int head, int position) {
    return key_value * (2 * (static_cast<uint64_t>(head) * 65537 + position) + 1);
  }
  static uint64_t NextState(int layer, uint64_t state, uint64_t sum) {
    return Mix64(state ^ Mix64(sum + static_cast<uint64_t>(layer)));
  }
  // The last layer's state of a token as numbers, which a vector is made of.
  static std::vector<float> Numbers(uint64_t state) {
    return {static_cast<float>(UnitDouble(Mix64(state))),
            static_cast<float>(UnitDouble(Mix64(state + 1)))};
  }
  // The token at `position` from the last layer's state at the position before. EOS and stop tokens
  // are not chosen before min_tokens. `allowed`: as of TokenMatcher; empty: all.
  TokenId Sample(uint64_t state, int position, int generated, const SamplingParams& params,
                 uint64_t sequence_seed, std::span<const TokenId> eos_token_ids,
                 std::span<const uint32_t> allowed = {}) const;
};

// The vector of a prompt by definition.
std::vector<float> HashVector(const HashModel& model, std::span<const TokenId> prompt,
                              Pooling pooling);

// The output of one sequence by definition, end included, without blocks or a schedule. `seed` is
// the sequence's; `output_limit` is what max_tokens and the model's length leave. `begun`: the
// tokens that it has already, which have not ended it. A constrained output follows HashGrammars.
std::vector<TokenId> HashReference(const HashModel& model, std::span<const TokenId> prompt,
                                   const SamplingParams& params, uint64_t seed, int output_limit,
                                   std::span<const TokenId> eos_token_ids = {},
                                   std::span<const TokenId> begun = {});

}  // namespace millrace::stage
