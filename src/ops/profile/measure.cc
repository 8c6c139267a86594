#include "ops/profile/measure.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "ops/profile/step_rig.h"

namespace millrace::ops {

Result<ProfileLimits> FitLimits(ProfileLimits limits, const ModelSpec& spec, int64_t memory) {
  limits.max_context = std::min(limits.max_context, spec.max_position);
  limits.max_tokens = std::min(limits.max_tokens, limits.max_context);
  limits.context_tokens = std::max(limits.context_tokens, limits.max_context);
  const int64_t block_bytes = spec.KvBytesPerToken() * kProfileBlockSize;
  // A third of the free memory: other programs need the rest.
  while (StepRig::BlocksFor(limits, kProfileBlockSize) * block_bytes > memory / 3) {
    if (limits.context_tokens <= 64) {
      return ResourceExhausted(fmt::format(
          "{} of memory are free, too little for a KV cache to measure with; stop something else",
          FormatBytes(memory)));
    }
    limits.context_tokens /= 2;
    limits.max_context = std::min(limits.max_context, limits.context_tokens);
    limits.max_tokens = std::min(limits.max_tokens, limits.max_context);
  }
  return limits;
}

cost::StepKnots ProfileKnots() { return {.tokens = {0, 4, 8, 12, 16, 64, 256}, .sequences = {0}}; }

}  // namespace millrace::ops
