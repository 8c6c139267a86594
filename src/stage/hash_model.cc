#include "stage/hash_model.h"

#include <algorithm>

#include "sched/finish_rules.h"
#include "stage/hash_grammar.h"

namespace millrace::stage {

TokenId HashModel::Sample(uint64_t state, int position, int generated, const SamplingParams& params,
                          uint64_t sequence_seed, std::span<const TokenId> eos_token_ids,
                          std::span<const uint32_t> allowed) const {
  const uint64_t draw =
      params.greedy() ? 0 : HashCounter(sequence_seed, static_cast<uint64_t>(position));
  auto token = static_cast<TokenId>(Mix64(state ^ draw) % static_cast<uint64_t>(vocab_size));
  const auto banned = [&] {
    const auto t = static_cast<size_t>(token);
    if (!allowed.empty() && (allowed[t / 32] >> (t % 32) & 1) == 0) return true;
    return generated < params.min_tokens && (std::ranges::count(eos_token_ids, token) > 0 ||
                                             std::ranges::count(params.stop_token_ids, token) > 0);
  };
  while (banned()) token = (token + 1) % vocab_size;
  return token;
}

std::vector<TokenId> HashReference(const HashModel& model, std::span<const TokenId> prompt,
                                   const SamplingParams& params, uint64_t seed, int output_limit,
                                   std::span<const TokenId> eos_token_ids,
                                   std::span<const TokenId> begun) {
  std::vector<uint64_t> sums(model.num_layers);
  uint64_t state = 0;
  int position = 0;
  const auto add = [&](TokenId token) {
    state = model.Embed(token, position);
    for (int layer = 0; layer < model.num_layers; ++layer) {
      for (int head = 0; head < model.heads; ++head) {
        const uint64_t slot = HashModel::KeyValue(layer, head, state, position);
        sums[layer] += HashModel::Share(slot, head, position);
      }
      state = HashModel::NextState(layer, state, sums[layer]);
    }
    ++position;
  };
  for (TokenId token : prompt) add(token);
  std::vector<TokenId> output(begun.begin(), begun.end());
  for (TokenId token : output) add(token);
  const auto matcher = HashGrammars(model.vocab_size).MatcherOf(params.grammar);
  for (;;) {
    const int generated = static_cast<int>(output.size());
    std::span<const uint32_t> allowed;
    if (!params.grammar.empty()) allowed = *matcher->Allowed(output);
    output.push_back(
        model.Sample(state, position, generated, params, seed, eos_token_ids, allowed));
    if (sched::FinishAfter(output.back(), generated + 1, output_limit, params, eos_token_ids)) {
      return output;
    }
    add(output.back());
  }
}

}  // namespace millrace::stage
