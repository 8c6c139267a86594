// Whether a request's masks (allowed_token_ids, bad_words, min_tokens, a constraint) leave a token
// that its answer may begin with. What leaves none is refused; what leaves none later is only seen
// in the answer. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/sampling_params.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

struct FirstToken {
  int vocab_size = 0;
  std::span<const TokenId> eos;
  // What the constraint allows (TokenMatcher::Allowed); empty: anything.
  std::span<const uint32_t> constraint = {};
  std::string constraint_field = {};
};

// The error names the fields of which each one leaves something, and all together nothing.
std::optional<ApiError> CheckFirstToken(const SamplingParams& params, const FirstToken& first);

}  // namespace millrace::serve
