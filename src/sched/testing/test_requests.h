// Random test requests for property tests, and their answers by definition, without a scheduler.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
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
    if (!q.params.pools() && q.seed % 5 == 0) {
      q.params.beam_search = true;
      q.params.temperature = q.params.frequency_penalty = 0;
      q.params.min_tokens = 0;
      q.params.prompt_logprobs.reset();
      q.params.length_penalty = static_cast<double>(q.seed % 4) - 1;
    }
    test_requests.push_back(std::move(q));
  }
  return test_requests;
}

// A beam search by definition: every candidate after every beam, up to the limit of tokens.
inline std::vector<TokenId> ExpectedBeam(const ContextHashModel& model, const TestRequest& q,
                                         int index) {
  struct Beam {
    std::vector<TokenId> tokens;
    double logprob = 0, score = 0;
  };
  const auto score = [&](double logprob, size_t length) {
    return logprob / std::pow(std::max<size_t>(length, 1), q.params.length_penalty);
  };
  const auto n = static_cast<size_t>(q.params.n), most = static_cast<size_t>(*q.params.max_tokens);
  std::vector<Beam> beams(1), answers;
  for (size_t length = 1; length <= most; ++length) {
    std::vector<Beam> next;
    for (const Beam& beam : beams) {
      const std::vector<float> logprobs = model.Logprobs(q.prompt, beam.tokens);
      std::vector<TokenId> tokens(logprobs.size());
      std::iota(tokens.begin(), tokens.end(), 0);
      std::ranges::stable_sort(tokens, std::greater<>(), [&](TokenId t) { return logprobs[t]; });
      tokens.resize(static_cast<size_t>(BeamCandidates(q.params, std::array{kTestRequestEos})));
      for (const TokenId token : tokens) {
        Beam child = beam;
        child.tokens.push_back(token);
        child.logprob += logprobs[static_cast<size_t>(token)];
        const auto& stops = q.params.stop_token_ids;
        const bool stops_it = (token == kTestRequestEos && !q.params.ignore_eos) ||
                              std::find(stops.begin(), stops.end(), token) != stops.end();
        child.score = score(child.logprob, stops_it ? length - 1 : length);
        (stops_it ? answers : next).push_back(std::move(child));
      }
    }
    std::ranges::stable_sort(next, std::greater<>(), &Beam::logprob);
    next.resize(std::min(next.size(), n));
    beams = std::move(next);
  }
  answers.insert(answers.end(), beams.begin(), beams.end());
  std::ranges::stable_sort(answers, std::greater<>(), &Beam::score);
  return answers[static_cast<size_t>(index)].tokens;
}

// The whole answer by definition, without a scheduler.
inline std::vector<TokenId> Expected(const TestRequest& q, int index) {
  if (q.params.pools()) return {};
  const ContextHashModel model(
      {.vocab_size = kTestRequestVocab, .eos_token_ids = {kTestRequestEos}});
  if (q.params.beam_search) return ExpectedBeam(model, q, index);
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
