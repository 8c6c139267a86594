// When a sequence ends by itself: a token that stops it, or its length. Stop strings are text and
// are matched outside the controller. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>

#include "core/ids.h"
#include "core/output.h"
#include "core/sampling_params.h"

namespace millrace::sched {

// Whether FinishAfter depends only on the number of tokens, not on which they are.
inline bool EndsByLengthOnly(const SamplingParams& params, std::span<const TokenId> eos_token_ids) {
  return (params.ignore_eos || eos_token_ids.empty()) && params.stop_token_ids.empty();
}

// To be called after `token` became the last of `output_tokens`. A stop token takes precedence over
// the length, but counts only after the first min_tokens.
inline std::optional<FinishReason> FinishAfter(TokenId token, int output_tokens, int output_limit,
                                               const SamplingParams& params,
                                               std::span<const TokenId> eos_token_ids) {
  if (output_tokens > params.min_tokens) {
    const auto contains = [&](std::span<const TokenId> ids) {
      for (TokenId id : ids) {
        if (id == token) return true;
      }
      return false;
    };
    if (!params.ignore_eos && contains(eos_token_ids)) return FinishReason::kStop;
    if (contains(params.stop_token_ids)) return FinishReason::kStop;
  }
  if (output_tokens >= output_limit) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace millrace::sched
