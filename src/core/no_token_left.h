// What a stage returns as SequenceResult::error when the masks of a sequence (min_tokens,
// allowed_token_ids, bad_words, a constraint) leave no token. It is no failure: the scheduler ends
// the sequence with what it has, FinishReason::kLength. Pure functions; any thread.
#pragma once

#include "base/status.h"

namespace millrace {

// A code that no stage uses for anything else.
inline Status NoTokenLeft(std::string why) { return NotFound(std::move(why)); }
inline bool IsNoTokenLeft(const Status& status) { return status.code() == StatusCode::kNotFound; }

}  // namespace millrace
