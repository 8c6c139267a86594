// How a request wants its tokens chosen. Pure data with a validator; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/ids.h"

namespace millrace {

inline constexpr int kSequencesPerRequestMax = 128;  // n
inline constexpr int kTopLogprobsMax = 20;
inline constexpr int kStopStringsMax = 16;
inline constexpr size_t kStopStringBytesMax = 1024;
inline constexpr int kStopTokensMax = 64;
inline constexpr int kLogitBiasMax = 1024;
inline constexpr int kAllowedTokensMax = 1024;
inline constexpr int kBadWordsMax = 512;
inline constexpr int kBadWordTokensMax = 64;  // of one
inline constexpr int kLogprobTokensMax = 128;
inline constexpr int kPositionLogprobsMax =
    kTopLogprobsMax + kLogprobTokensMax;  // beside the chosen
// Each sequence of a beam search needs twice as many log-probabilities as there are sequences.
inline constexpr int kBeamWidthMax = kTopLogprobsMax / 2;
inline constexpr size_t kGrammarBytesMax = 512u << 10;

// What a request yields: tokens, or one vector of the hidden states that enter the LM head.
enum class Pooling : uint8_t {
  kNone,  // tokens
  kLast,  // the state of the prompt's last token
  kMean,  // the mean of the states of all of its tokens
};

struct SamplingParams {
  int n = 1;                      // sequences to generate from the one prompt
  std::optional<int> max_tokens;  // generated tokens at most; none: up to the model's length
  int min_tokens = 0;  // EOS, stop tokens and stop strings have no effect before this many tokens
  double temperature = 1.0;         // 0 is greedy
  double top_p = 1.0;               // in (0, 1]
  int top_k = 0;                    // 0: all
  double min_p = 0.0;               // in [0, 1]
  double repetition_penalty = 1.0;  // over prompt and output; > 0
  double presence_penalty = 0.0;    // over output; in [-2, 2]
  double frequency_penalty = 0.0;   // over output; in [-2, 2]
  std::optional<uint64_t> seed;     // none: the controller draws one and reports it in its logs
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::string> stop;  // matched on text, outside the controller
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::optional<int> logprobs;             // 0: only the chosen token's; k: the k likeliest as well
  std::optional<int> prompt_logprobs;      // the same for the prompt's tokens
  std::vector<TokenId> allowed_token_ids;  // empty: all
  std::string grammar;  // what the output must match (output_grammar.h); empty: anything
  Pooling pooling = Pooling::kNone;             // a vector in place of tokens
  std::vector<std::vector<TokenId>> bad_words;  // token sequences that the output must not contain
  std::vector<TokenId> logprob_token_ids;       // reported behind the likeliest; needs `logprobs`
  // The n likeliest answers that a search with n beams finds, likeliest first. Nothing is drawn.
  bool beam_search = false;
  double length_penalty = 1.0;  // a beam's score: its log-probability / its length ^ this

  bool greedy() const { return temperature == 0.0; }
  bool pools() const { return pooling != Pooling::kNone; }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// What holds for every value of a field.
struct SamplingField {
  const char* name;        // in the HTTP API, in messages and in files; it never changes
  bool schedules = false;  // affects the scheduler's decisions; the step log has these fields only
  size_t items_max = 0;    // of a list
};

// Calls `visit(SamplingField, member)` for each field in the order of declaration. A field that is
// missing here does not compile.
template <typename Params, typename Visitor>
void ForEachField(Params& params, Visitor&& visit) {
  auto& [n, max_tokens, min_tokens, temperature, top_p, top_k, min_p, repetition_penalty,
         presence_penalty, frequency_penalty, seed, logit_bias, stop_token_ids, stop,
         include_stop_str_in_output, ignore_eos, skip_special_tokens, logprobs, prompt_logprobs,
         allowed_token_ids, grammar, pooling, bad_words, logprob_token_ids, beam_search,
         length_penalty] = params;
  constexpr bool kSchedules = true;
  visit(SamplingField{"n", kSchedules}, n);
  visit(SamplingField{"max_tokens", kSchedules}, max_tokens);
  visit(SamplingField{"min_tokens", kSchedules}, min_tokens);
  visit(SamplingField{"temperature"}, temperature);
  visit(SamplingField{"top_p"}, top_p);
  visit(SamplingField{"top_k"}, top_k);
  visit(SamplingField{"min_p"}, min_p);
  visit(SamplingField{"repetition_penalty"}, repetition_penalty);
  visit(SamplingField{"presence_penalty"}, presence_penalty);
  visit(SamplingField{"frequency_penalty"}, frequency_penalty);
  visit(SamplingField{"seed"}, seed);
  visit(SamplingField{"logit_bias", false, kLogitBiasMax}, logit_bias);
  visit(SamplingField{"stop_token_ids", kSchedules, kStopTokensMax}, stop_token_ids);
  visit(SamplingField{"stop", false, kStopStringsMax}, stop);
  visit(SamplingField{"include_stop_str_in_output"}, include_stop_str_in_output);
  visit(SamplingField{"ignore_eos", kSchedules}, ignore_eos);
  visit(SamplingField{"skip_special_tokens"}, skip_special_tokens);
  visit(SamplingField{"logprobs"}, logprobs);
  visit(SamplingField{"prompt_logprobs", kSchedules}, prompt_logprobs);
  visit(SamplingField{"allowed_token_ids", false, kAllowedTokensMax}, allowed_token_ids);
  visit(SamplingField{"grammar"}, grammar);
  visit(SamplingField{"pooling", kSchedules}, pooling);
  visit(SamplingField{"bad_words", false, kBadWordsMax}, bad_words);
  visit(SamplingField{"logprob_token_ids", false, kLogprobTokensMax}, logprob_token_ids);
  visit(SamplingField{"beam_search", kSchedules}, beam_search);
  visit(SamplingField{"length_penalty", kSchedules}, length_penalty);
}

// Checks every range above, and every token id against `vocab_size`. kInvalidArgument names the
// field, the value and the range.
Status Validate(const SamplingParams& params, int vocab_size);

// The oldest version of the protocol between processes (protocol_range.h) whose workers heed all of
// the parameters.
int ProtocolFor(const SamplingParams& params);

// How many candidates for its next token a beam offers, the likeliest first: enough for n that do
// not stop it. A token that would stop it and is less likely is not considered.
int BeamCandidates(const SamplingParams& params, std::span<const TokenId> eos);

// The tokens that each sequence may generate after a prompt of this length: max_tokens, or what the
// model's length leaves. nullopt: max_tokens, or at least one token, does not fit behind the
// prompt. A request for a vector generates none, so that its prompt may have the model's length;
// its step counts as the one that would sample.
std::optional<int> OutputLimit(const SamplingParams& params, int64_t prompt_tokens,
                               int max_model_len);

// The seed of sequence `index` of a request: index 0 keeps the request's own seed, so that n = 1
// equals the first of n.
uint64_t SequenceSeed(uint64_t request_seed, int index);

}  // namespace millrace
