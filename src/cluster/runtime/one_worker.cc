#include "cluster/runtime/one_worker.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace millrace::cluster {
namespace {

// No other worker could replace this one, so it is never declared lost.
constexpr Duration kPatience = Duration::Seconds(1e9);
constexpr auto kReadyPoll = std::chrono::milliseconds(1);
constexpr Duration kReadyLimit = Duration::Seconds(60);  // to allocate the KV pools

// Returns a loader that gives the worker the stage that is loaded already.
ShardLoader LoaderOf(const OneWorker& worker, int block_size) {
  LoadedShard loaded;
  loaded.stage = worker.stage;
  loaded.facts.weight_bytes = worker.weight_bytes;
  loaded.facts.kv_bytes_per_token_layer = worker.kv_bytes_per_token / worker.stage->layers().size();
  loaded.facts.kv_bytes = int64_t{worker.num_blocks} * block_size * worker.kv_bytes_per_token;
  return [loaded](const LoadShard& load, const std::shared_ptr<stage::Stage>&,
                  const ShardProgressFn&) {
    if (load.layers == loaded.stage->layers() && load.rank.size == 1) return loaded;
    LoadedShard refused;
    refused.facts.status = Unimplemented("this process computes the whole model");
    return refused;
  };
}

// Why a request would wait. An open pipeline is awaited too, so that every request of this process
// gets to a scheduler at once.
std::optional<std::string> Missing(const ControllerHost& host) {
  if (auto missing = host.NotReady()) return missing;
  const bool open = std::ranges::any_of(host.Describe().pipelines, &PipelineStatus::open);
  return open ? std::nullopt : std::optional<std::string>("no pipeline is open");
}

}  // namespace

Result<std::unique_ptr<LocalCluster>> StartOneWorker(ControllerHostOptions options,
                                                     OneWorker worker, const Clock& clock) {
  ControllerOptions& c = options.controller;
  c.term = Term{1};
  c.silent_limit = c.stuck_limit = c.first_batch_limit = c.still_limit = kPatience;
  c.steps.least = c.steps.open = kPatience;
  ShardLoader loader = LoaderOf(worker, c.scheduler.block_size);
  MR_ASSIGN_OR_RETURN(std::unique_ptr<LocalCluster> cluster,
                      LocalCluster::Start(std::move(options), clock));
  cluster->AddWorker(std::move(worker.join), std::move(loader));
  const Time begun = clock.Now();
  while (const auto missing = Missing(cluster->host())) {
    if (clock.Now() - begun > kReadyLimit) {
      return Internal("the model does not start: " + *missing);
    }
    std::this_thread::sleep_for(kReadyPoll);
  }
  return cluster;
}

}  // namespace millrace::cluster
