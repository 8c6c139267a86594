#include <fmt/format.h>

#include <optional>

#include "serve/http/limits.h"
#include "serve/request/request.h"

namespace millrace::serve {

Parsed<FittedLengths> FitLengths(const GenerationOptions& options, const ParseContext& context,
                                 const std::vector<int>& prompt_tokens) {
  const SamplingParams& params = options.params;
  FittedLengths fitted;
  int64_t generated = 0;
  int64_t logprobs = 0;
  for (int prompt : prompt_tokens) {
    std::optional<int> limit = OutputLimit(params, prompt, context.max_model_len);
    if (!limit && options.clamps_length && prompt < context.max_model_len) {
      limit = context.max_model_len - prompt;
    }
    if (!limit) {
      return ContextTooLong(context.max_model_len, prompt,
                            options.clamps_length ? std::nullopt : params.max_tokens);
    }
    const int max_tokens = *limit;
    if (params.min_tokens > max_tokens) {
      return BadField("min_tokens",
                      fmt::format("min_tokens ({}) must not exceed the {} tokens that can be "
                                  "generated for a prompt of {}",
                                  params.min_tokens, max_tokens, prompt));
    }
    fitted.max_tokens.push_back(max_tokens);
    generated += int64_t{max_tokens} * params.n;
    if (params.logprobs) {
      logprobs += int64_t{max_tokens} * params.n *
                  (1 + *params.logprobs + std::ssize(params.logprob_token_ids));
    }
    if (params.prompt_logprobs) {  // each of the n echoes carries them
      logprobs += int64_t{prompt} * params.n * (1 + *params.prompt_logprobs);
    }
  }
  if (generated > kGeneratedTokensMax) {
    return BadField("max_tokens", fmt::format("n x max_tokens over all prompts is {} tokens, the "
                                              "limit of one request is {}; send smaller requests",
                                              generated, kGeneratedTokensMax));
  }
  if (logprobs > kLogprobEntriesMax) {
    return BadField("logprobs", fmt::format("the request asks for {} log-probabilities, the limit "
                                            "of one request is {}; lower max_tokens, n or "
                                            "logprobs",
                                            logprobs, kLogprobEntriesMax));
  }
  const int64_t sequences = static_cast<int64_t>(prompt_tokens.size()) * params.n;
  if (sequences > kSequencesMax) {
    return BadField("n", fmt::format("n over all prompts is {} sequences, the limit of one request "
                                     "is {}",
                                     sequences, kSequencesMax));
  }
  return fitted;
}

}  // namespace millrace::serve
