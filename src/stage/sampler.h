// Sampling: from one row of logits to one token, as a pure function of (logits, parameters, tokens
// so far, seed, position). What changes logits and reports them is here; the choice is
// tensor/cpu/sample.h, which a device may also make where the logits are.
//
// Order of operations: logit bias, bans (min_tokens, allowed_token_ids, bad_words), repetition /
// presence / frequency penalties, the grammar of a constrained output (if the bans leave none of
// its tokens, the end-of-sequence token may come where the text matches), temperature, top-k,
// top-p, min-p, draw. Reported log-probabilities are those of the model's own distribution, before
// any of this, as in vLLM's default.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/output_grammar.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"
#include "stage/pooler.h"
#include "tensor/cpu/sample.h"

namespace millrace::stage {

// A sequence's state for sampling. Tokens are written by position, so that a replay writes the same
// values again.
class SamplingState {
 public:
  // `grammars`: used if the output is constrained; null: such a sequence fails when it is sampled.
  explicit SamplingState(const SequenceStart& start, GrammarSource* grammars = nullptr);

  const SamplingParams& params() const { return *params_; }
  uint64_t seed() const { return seed_; }
  int prompt_tokens() const { return prompt_tokens_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  void Record(int position, std::span<const TokenId> tokens);

  struct Count {
    int output = 0;       // times among the generated tokens
    bool prompt = false;  // in the prompt
  };
  // For tokens [0, length). REQUIRES: they have been recorded.
  const std::unordered_map<TokenId, Count>& CountsUpTo(int length);
  // Tokens that may come at `position` (TokenMatcher::Allowed). REQUIRES: the output is
  // constrained.
  Result<std::span<const uint32_t>> AllowedAt(int position);
  // Of a sequence whose parameters ask for a vector.
  Pooler& pooler() { return pooler_; }

 private:
  std::shared_ptr<const SamplingParams> params_;
  uint64_t seed_;
  int prompt_tokens_;
  std::vector<TokenId> tokens_;
  std::unordered_map<TokenId, Count> counts_;
  int counted_ = 0;
  std::unique_ptr<TokenMatcher> matcher_;
  Pooler pooler_;
};

// Chooses the token at `position` (= number of tokens before it). `logits` is [vocab] and is
// overwritten. `eos` may not be chosen before min_tokens. NoTokenLeft (core/no_token_left.h) when
// all are banned; kInternal when a logit is NaN, an error of this sequence only. One thread per
// Sampler.
class Sampler {
 public:
  struct Choice {
    TokenId token = 0;
    std::optional<PositionLogprobs> logprobs;
  };
  // Of a beam search, the token is the likeliest, and `logprobs` has its candidates.
  Result<Choice> Sample(std::span<float> logits, int position, SamplingState& state,
                        std::span<const TokenId> eos);

 private:
  static Result<Choice> OfferCandidates(std::span<const float> logits, int position,
                                        const SamplingParams& params, std::span<const TokenId> eos);
  static Status ApplyGrammar(std::span<float> logits, int position, SamplingState& state,
                             std::span<const TokenId> eos);

  tensor::TokenChooser chooser_;
};

// Whether the token at `position` follows from the row by HowToChoose alone, and nothing else of
// the row is wanted.
bool NeedsTokenOnly(const SamplingState& state, int position);
tensor::ChooseSpec HowToChoose(const SamplingState& state, int position);
// The error of a sequence for which Choose finds no token.
Status NoToken(int position);

// Log-probabilities under softmax(logits) of `chosen`, of the `top` likeliest tokens, where ties go
// to the smaller id, and then of `others`. nullopt when a logit is NaN.
std::optional<PositionLogprobs> LogprobsAt(std::span<const float> logits, TokenId chosen, int top,
                                           std::span<const TokenId> others = {});

}  // namespace millrace::stage
