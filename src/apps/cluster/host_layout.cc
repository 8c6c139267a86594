#include "apps/cluster/host_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "core/worker_messages.h"
#include "cost/memory_model.h"
#include "model/sharding.h"

namespace millrace::apps {
namespace {

constexpr double kUsableShare = 0.9;  // of the free memory

// Why the machine cannot have a copy of the model for each worker; empty: it can.
std::string WhyNoCopies(const HostLayoutNeed& need, int64_t weights) {
  const auto usable = static_cast<int64_t>(kUsableShare * static_cast<double>(need.free_bytes));
  if (need.workers * weights + need.kv_bytes > usable) {
    return fmt::format("{} copies of {} of weights with {} of KV do not fit in {} of free memory",
                       need.workers, FormatBytes(weights), FormatBytes(need.kv_bytes),
                       FormatBytes(need.free_bytes));
  }
  const int64_t longest = need.max_model_len * need.spec.KvBytesPerToken();
  if (need.kv_bytes / need.workers < longest) {
    return fmt::format(
        "{} of KV, shared by {} copies, do not hold the longest sequence in each, {}",
        FormatBytes(need.kv_bytes), need.workers, FormatBytes(longest));
  }
  return {};
}

}  // namespace

HostLayout FastestOnOneHost(const HostLayoutNeed& need) {
  const int workers = need.workers;
  if (workers == 1) return {{}, "one worker has the whole model"};
  const int64_t weights = cost::StageWeightBytes(need.spec, {0, need.spec.num_layers});
  const std::string no_copies = WhyNoCopies(need, weights);
  if (no_copies.empty()) {
    return {{.replicas = workers},
            fmt::format("each of {} workers has a copy of the model, {}, and its share of {} for "
                        "KV: the fastest layout of one machine",
                        workers, FormatBytes(weights), FormatBytes(need.kv_bytes))};
  }
  const Status split = model::CheckSharding(need.spec, {.rank = 0, .size = workers});
  if (split.ok()) {
    return {{.tensor_parallel = workers},
            fmt::format("{} workers share each layer: the fastest layout of one machine without "
                        "copies of the model; {}",
                        workers, no_copies)};
  }
  return {{.stages = std::min(workers, need.spec.num_layers)},
          fmt::format("{} workers are the stages of a pipeline; {}, and they cannot share each "
                      "layer: {}",
                      workers, no_copies, split.message())};
}

}  // namespace millrace::apps
