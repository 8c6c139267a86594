// For tests: messages to a WorkerCore, and what it does.
#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "cluster/worker/worker_core.h"

namespace millrace::cluster {

inline constexpr stage::StageLimits kLimits = {
    .vocab_size = 100, .max_model_len = 64, .max_batched_tokens = 64};

template <typename T>
std::vector<T> Take(WorkerCore& core) {
  std::vector<WorkerAction> actions;
  core.TakeActions(actions);
  std::vector<T> out;
  for (WorkerAction& action : actions) {
    if (auto* found = std::get_if<T>(&action)) out.push_back(std::move(*found));
  }
  return out;
}

inline LoadShard Load(ShardId shard, LayerRange layers) {
  return {.shard = shard, .layers = layers, .rank = {}, .ranks = {{}}, .max_batched_tokens = 64};
}

inline void Welcomed(WorkerCore& core, uint64_t worker, Time now = {}) {
  core.SessionUp(now);
  core.FromController(Welcome{WorkerId(worker), Term(1), Duration::Seconds(0.25)}, now);
}

}  // namespace millrace::cluster
