// How a request wants its tokens chosen. Pure data with a validator; any thread.
#pragma once

#include <cstdint>
#include <optional>
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
  std::optional<uint64_t> seed;     // none: the engine draws one and reports it in its logs
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::string> stop;  // matched on text, outside the engine
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::optional<int> logprobs;         // 0: only the chosen token's; k: the k likeliest as well
  std::optional<int> prompt_logprobs;  // the same for the prompt's tokens

  bool greedy() const { return temperature == 0.0; }
};

// Checks every range above, and every token id against `vocab_size`. kInvalidArgument names the
// field, the value and the range.
Status Validate(const SamplingParams& params, int vocab_size);

// The seed of sequence `index` of a request: index 0 keeps the request's own seed, so that n = 1
// equals the first of n.
uint64_t SequenceSeed(uint64_t request_seed, int index);

}  // namespace millrace
