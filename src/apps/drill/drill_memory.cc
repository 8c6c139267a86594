#include "apps/drill/drill_memory.h"

#include <fmt/format.h>

#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr int64_t kProcessBytes = 96 << 20;  // of a process beside weights and KV
constexpr int kKvBlockTokens = 16;
// KV in f32 at most, and twice, because blocks are held for a moment after they are handed over.
constexpr int64_t kKvMargin = 4;

}  // namespace

Result<int64_t> CheckDrillFits(const DrillOptions& options, const plan::ModelFootprint& model,
                               const MemoryAvailable& free) {
  const int tokens_max = model.spec.max_position - kDrillPromptTokensMax;
  if (options.tokens > tokens_max) {
    return InvalidArgument(fmt::format(
        "--tokens {} and a prompt of up to {} exceed the model's context of {}: give at most {}",
        options.tokens, kDrillPromptTokensMax, model.spec.max_position, tokens_max));
  }
  const int64_t tokens = options.tokens + kDrillPromptTokensMax + kKvBlockTokens;
  const int64_t kv_bytes = kKvMargin * options.streams * tokens * model.spec.KvBytesPerToken();
  const int64_t bytes =
      (options.workers + 1) * (model.spec.weight_bytes + kv_bytes + kProcessBytes);
  if (bytes <= free.bytes) return kv_bytes;
  return FailedPrecondition(
      fmt::format("a controller and {} workers of this model need about {}, and {} is free ({}): "
                  "give fewer --workers or --streams, or a smaller model",
                  options.workers, FormatBytes(bytes), FormatBytes(free.bytes), free.source));
}

}  // namespace millrace::apps
