#include "plan/distserve/distserve_prefill.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::plan {
namespace {

double TokensPerSecond(const std::vector<const cost::StepCost*>& stages, int tokens) {
  const cost::BatchShape prompt{.prefill_tokens = tokens,
                                .prefill_tokens_squared = int64_t{tokens} * tokens,
                                .prefill_sequences = 1};
  double slowest_s = 0;
  for (const cost::StepCost* stage : stages) {
    slowest_s = std::max(slowest_s, stage->Seconds(prompt));
  }
  return slowest_s > 0 ? tokens / slowest_s : 0;
}

}  // namespace

int SaturatingPromptTokens(const std::vector<const cost::StepCost*>& stages, int tokens_max,
                           double share) {
  MR_CHECK(!stages.empty() && share > 0 && share <= 1) << stages.size() << " stages, " << share;
  MR_CHECK(tokens_max >= 1 && tokens_max <= kSaturatingTokensMax) << tokens_max;
  double best = 0;
  for (int tokens = 1; tokens <= tokens_max; ++tokens) {
    best = std::max(best, TokensPerSecond(stages, tokens));
  }
  for (int tokens = 1; tokens <= tokens_max; ++tokens) {
    if (TokensPerSecond(stages, tokens) >= share * best) return tokens;
  }
  return tokens_max;
}

}  // namespace millrace::plan
