#include "engine/chained_executor.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <utility>

namespace millrace::engine {
namespace {

constexpr PipelineId kPipeline{1};

void StayOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  // If this process may not use the CPU, the thread runs anywhere.
  static_cast<void>(pthread_setaffinity_np(pthread_self(), sizeof(set), &set));
}

}  // namespace

Result<std::unique_ptr<ChainedExecutor>> ChainedExecutor::Create(
    std::vector<std::unique_ptr<Stage>> stages, const ChainedExecutorOptions& options) {
  MR_CHECK(!stages.empty());
  std::unique_ptr<ChainedExecutor> executor(new ChainedExecutor(std::move(stages)));
  MR_RETURN_IF_ERROR(executor->Open(options));
  for (size_t i = 0; i < executor->hops_.size(); ++i) {
    executor->hops_[i].thread = std::thread([raw = executor.get(), i, cpus = options.cpus] {
      if (i < cpus.size()) StayOn(cpus[i]);
      raw->Work(i);
    });
  }
  return executor;
}

ChainedExecutor::ChainedExecutor(std::vector<std::unique_ptr<Stage>> stages)
    : hops_(stages.size()), flights_(stages.size() + 1) {
  for (size_t i = 0; i < stages.size(); ++i) hops_[i].stage = std::move(stages[i]);
}

Status ChainedExecutor::Open(const ChainedExecutorOptions& options) {
  if (!options.layers.empty() && options.layers.size() != hops_.size()) {
    return InvalidArgument(
        fmt::format("{} layer ranges for {} stages", options.layers.size(), hops_.size()));
  }
  traits_ = {.stages = static_cast<int>(hops_.size()),
             .block_size = options.block_size,
             .num_blocks = options.num_blocks,
             .num_host_blocks = options.num_host_blocks,
             .max_batched_tokens = options.max_batched_tokens,
             .max_sequences = options.max_sequences};
  int next_layer = 0;
  for (size_t i = 0; i < hops_.size(); ++i) {
    Stage& stage = *hops_[i].stage;
    const LayerRange layers = options.layers.empty() ? stage.layers() : options.layers[i];
    if (layers.begin != next_layer) {
      return InvalidArgument(
          fmt::format("stage {} begins at layer {}, the one before it ends at {}", i, layers.begin,
                      next_layer));
    }
    next_layer = layers.end;
    MR_RETURN_IF_ERROR(stage.OpenPipeline(kPipeline, {.layers = layers,
                                                      .block_size = options.block_size,
                                                      .num_blocks = options.num_blocks,
                                                      .num_host_blocks = options.num_host_blocks,
                                                      .first = i == 0,
                                                      .last = i + 1 == hops_.size(),
                                                      .eos_token_ids = options.eos_token_ids}));
    const auto [first_head, end_head] = stage.kv_heads();
    traits_.kv_bytes_per_block +=
        static_cast<int64_t>(stage.KvBytes({layers, first_head, end_head, 0, options.block_size}));
  }
  return OkStatus();
}

ChainedExecutor::~ChainedExecutor() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (Hop& hop : hops_) hop.arrived.notify_one();
  for (Hop& hop : hops_) {
    if (hop.thread.joinable()) hop.thread.join();
  }
}

void ChainedExecutor::Submit(const StepPlan& plan) {
  MutexLock lock(mutex_);
  MR_CHECK(submitted_ - waited_ < hops_.size()) << "more steps in flight than stages";
  Flight& flight = flights_[submitted_ % flights_.size()];
  flight.plan = plan;
  flight.part.pipeline = kPipeline;
  flight.part.plan = &flight.plan;
  flight.part.input = {};
  flight.part.result.error = OkStatus();
  flight.stages_done = 0;
  ++submitted_;
  lock.unlock();
  hops_.front().arrived.notify_one();
}

const StepResult& ChainedExecutor::Wait() {
  MutexLock lock(mutex_);
  MR_CHECK(waited_ < submitted_) << "no step in flight";
  Flight& flight = flights_[waited_ % flights_.size()];
  completed_.wait(lock, [&] { return flight.stages_done == hops_.size(); });
  ++waited_;
  return flight.part.result;
}

void ChainedExecutor::Work(size_t index) {
  Hop& hop = hops_[index];
  for (uint64_t step = 0;; ++step) {
    Flight& flight = flights_[step % flights_.size()];
    {
      MutexLock lock(mutex_);
      hop.arrived.wait(lock, [&]() MR_REQUIRES(mutex_) {
        return stopping_ || (step < submitted_ && flight.stages_done == index);
      });
      if (stopping_) return;
    }
    RunHop(*hop.stage, flight);
    {
      const MutexLock lock(mutex_);
      ++flight.stages_done;
    }
    if (index + 1 < hops_.size()) {
      hops_[index + 1].arrived.notify_one();
    } else {
      completed_.notify_one();
    }
  }
}

// A failed step passes the remaining stages without running.
void ChainedExecutor::RunHop(Stage& stage, Flight& flight) {
  StagePart& part = flight.part;
  if (!part.result.error.ok()) return;
  const Status ran = stage.Run({&part, 1});
  if (!ran.ok()) part.result.error = ran;
  flight.rows.swap(part.output);
  part.input = flight.rows;
}

}  // namespace millrace::engine
