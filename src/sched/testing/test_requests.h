// Random test requests for property tests, and their answers by definition, without a scheduler.
#pragma once

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "sched/testing/context_hash_model.h"

namespace millrace::sched {

inline constexpr int kTestRequestVocab = 200;
inline constexpr TokenId kTestRequestEos = 7;

struct TestRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
};

inline std::vector<TestRequest> RandomRequests(Rng& rng, int count, int prompt_max, int output_max,
                                               int n_max) {
  std::vector<TestRequest> test_requests;
  std::vector<TokenId> common(prompt_max);
  for (TokenId& t : common) t = static_cast<TokenId>(rng.Between(0, kTestRequestVocab - 1));
  for (int i = 0; i < count; ++i) {
    TestRequest q;
    q.prompt.assign(common.begin(), common.begin() + rng.Between(0, prompt_max - 1));
    const int64_t own = rng.Between(1, prompt_max - static_cast<int64_t>(q.prompt.size()));
    for (int64_t t = 0; t < own; ++t) {
      q.prompt.push_back(static_cast<TokenId>(rng.Between(0, kTestRequestVocab - 1)));
    }
    q.params.n = static_cast<int>(rng.Between(1, n_max));
    q.params.max_tokens = static_cast<int>(rng.Between(1, output_max));
    q.params.min_tokens = static_cast<int>(rng.Between(0, *q.params.max_tokens));
    q.params.temperature = rng.Between(0, 1) ? 1.0 : 0.0;
    q.params.ignore_eos = rng.Between(0, 3) == 0;
    if (rng.Between(0, 3) == 0) q.params.logprobs = 0;
    if (rng.Between(0, 5) == 0) q.params.prompt_logprobs = 0;
    if (rng.Between(0, 3) == 0) q.params.stop_token_ids = {11, 13};
    if (rng.Between(0, 3) == 0) q.params.frequency_penalty = 0.5;
    q.seed = rng.Next();
    // Not drawn from `rng`, so that the other requests stay the same.
    const bool alone = q.params.n == 1 && !q.params.logprobs && !q.params.prompt_logprobs;
    if (alone && q.seed % 3 == 0) {
      q.params.pooling = q.seed % 2 == 0 ? Pooling::kLast : Pooling::kMean;
    }
    test_requests.push_back(std::move(q));
  }
  return test_requests;
}

// The whole answer by definition, without a scheduler.
inline std::vector<TokenId> Expected(const TestRequest& q, int index) {
  if (q.params.pools()) return {};
  const ContextHashModel model(
      {.vocab_size = kTestRequestVocab, .eos_token_ids = {kTestRequestEos}});
  const auto tokens =
      model.Generate(q.prompt, q.params, SequenceSeed(q.seed, index), *q.params.max_tokens);
  for (size_t i = q.params.min_tokens; i < tokens.size(); ++i) {
    const auto& stops = q.params.stop_token_ids;
    if ((tokens[i] == kTestRequestEos && !q.params.ignore_eos) ||
        std::find(stops.begin(), stops.end(), tokens[i]) != stops.end()) {
      return {tokens.begin(), tokens.begin() + i + 1};
    }
  }
  return tokens;
}

inline std::vector<float> ExpectedVector(const TestRequest& q) {
  return q.params.pools() ? ContextHashModel::Vector(q.prompt) : std::vector<float>();
}

}  // namespace millrace::sched
