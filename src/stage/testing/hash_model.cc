#include "stage/testing/hash_model.h"

#include <algorithm>

#include "sched/finish_rules.h"
#include "stage/testing/hash_grammar.h"

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

namespace {

// The states after the last layer, token after token.
class HashContext {
 public:
  explicit HashContext(const HashModel& model)
      : model_(model), sums_(static_cast<size_t>(model.num_layers)) {}
  uint64_t Add(TokenId token) {
    uint64_t state = model_.Embed(token, position_);
    for (int layer = 0; layer < model_.num_layers; ++layer) {
      uint64_t& sum = sums_[static_cast<size_t>(layer)];
      for (int head = 0; head < model_.heads; ++head) {
        const uint64_t slot = HashModel::KeyValue(layer, head, state, position_);
        sum += HashModel::Share(slot, head, position_);
      }
      state = HashModel::NextState(layer, state, sum);
    }
    ++position_;
    return state;
  }
  int position() const { return position_; }

 private:
  const HashModel& model_;
  std::vector<uint64_t> sums_;
  int position_ = 0;
};

}  // namespace

std::vector<float> HashVector(const HashModel& model, std::span<const TokenId> prompt,
                              Pooling pooling) {
  HashContext context(model);
  std::vector<double> sum;
  for (TokenId token : prompt) {
    const std::vector<float> numbers = HashModel::Numbers(context.Add(token));
    if (pooling == Pooling::kLast) sum.clear();
    sum.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) sum[i] += static_cast<double>(numbers[i]);
  }
  const auto states = pooling == Pooling::kLast ? 1.0 : static_cast<double>(prompt.size());
  std::vector<float> vector;
  for (const double number : sum) vector.push_back(static_cast<float>(number / states));
  return vector;
}

std::vector<TokenId> HashReference(const HashModel& model, std::span<const TokenId> prompt,
                                   const SamplingParams& params, uint64_t seed, int output_limit,
                                   std::span<const TokenId> eos_token_ids,
                                   std::span<const TokenId> begun) {
  if (params.pools()) return {};
  HashContext context(model);
  uint64_t state = 0;
  for (TokenId token : prompt) state = context.Add(token);
  std::vector<TokenId> output(begun.begin(), begun.end());
  for (TokenId token : output) state = context.Add(token);
  const auto matcher = HashGrammars(model.vocab_size).MatcherOf(params.grammar);
  for (;;) {
    const int generated = static_cast<int>(output.size());
    std::span<const uint32_t> allowed;
    if (!params.grammar.empty()) allowed = *matcher->Allowed(output);
    output.push_back(
        model.Sample(state, context.position(), generated, params, seed, eos_token_ids, allowed));
    if (sched::FinishAfter(output.back(), generated + 1, output_limit, params, eos_token_ids)) {
      return output;
    }
    state = context.Add(output.back());
  }
}

}  // namespace millrace::stage
