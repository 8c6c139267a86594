// What can be said about a NewRequest without the scheduler's state: whether its parts agree, and
// how much it may generate. Pure; any thread. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// Tokens that each sequence may generate in a scheduler. `model_len_max`: tokens that one sequence
// can have there; without max_tokens it is a limit too, and the result may be less than 1.
// kInvalidArgument: the answer is too long for the model.
Result<int> OutputLimitHere(const NewRequest& request, int max_model_len, int model_len_max);

// Whether the answer goes on after the token at which the scheduler stops.
bool ContinuesElsewhere(const NewRequest& request, int max_model_len);

// Whether every token of the prompt must be computed here: for its log-probabilities, which are
// delivered with a sequence's first token, so a sequence that has output has delivered them; or for
// the mean of its states.
bool NeedsWholePrompt(const NewRequest& request);

// kInvalidArgument: `output` tokens are generated, and no more are allowed.
Status CheckLength(size_t output, int output_limit);
// kInvalidArgument: the import covers more than the first known - 1 tokens.
Status CheckImportedTokens(int imported_tokens, int64_t known);
// kInvalidArgument: `resumed`, `imported_tokens` and the other fields of a request that comes from,
// or goes to, another stage contradict each other.
Status CheckHandOff(const NewRequest& request, int output_limit);

}  // namespace millrace::sched
