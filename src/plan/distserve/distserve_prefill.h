// L_m: the shortest prompt that saturates a device (DistServe, section 3.1). Shorter prompts are
// batched up to about this many tokens, longer ones run alone. Pure; any thread.
#pragma once

#include <vector>

#include "cost/step_cost.h"

namespace millrace::plan {

inline constexpr int kSaturatingTokensMax = 1 << 16;

// The shortest prompt whose rate in tokens/s reaches `share` of the best rate of any prompt of up
// to `tokens_max` tokens, by the cost of the slowest stage. At least 1. REQUIRES: stages not empty,
// 0 < share <= 1, tokens_max in [1, kSaturatingTokensMax].
int SaturatingPromptTokens(const std::vector<const cost::StepCost*>& stages, int tokens_max,
                           double share = 0.9);

}  // namespace millrace::plan
