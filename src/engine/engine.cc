#include "engine/engine.h"

#include <algorithm>

#include "base/log.h"
#include "base/rng.h"
#include "sched/step_log.h"

namespace millrace::engine {
namespace {

// How long the engine's thread sleeps when there is work that cannot run. Only a defect or a lost
// result causes that, and the watchdog reports it.
constexpr auto kBlockedPoll = std::chrono::milliseconds(20);

sched::SchedulerOptions FitToExecutor(sched::SchedulerOptions options,
                                      const ExecutorTraits& traits) {
  options.block_size = traits.block_size;
  options.num_blocks = traits.num_blocks;
  options.num_host_blocks = traits.num_host_blocks;
  options.stages = traits.stages;
  options.costs.kv_bytes_per_block = traits.kv_bytes_per_block;
  options.max_num_batched_tokens =
      std::min(options.max_num_batched_tokens, traits.max_batched_tokens);
  options.max_num_seqs = std::min(options.max_num_seqs, traits.max_sequences);
  return options;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Start(EngineOptions options,
                                              std::unique_ptr<Executor> executor,
                                              const Clock& clock) {
  options.scheduler = FitToExecutor(std::move(options.scheduler), executor->traits());
  MR_ASSIGN_OR_RETURN(auto scheduler, sched::Scheduler::Create(options.scheduler));
  if (options.step_log) {
    scheduler =
        sched::NewRecordingScheduler(std::move(scheduler), options.scheduler, options.step_log);
  }
  std::unique_ptr<Engine> engine(
      new Engine(std::move(options), std::move(scheduler), std::move(executor), clock));
  engine->thread_ = std::thread([raw = engine.get()] { raw->Run(); });
  return engine;
}

Engine::Engine(EngineOptions options, std::unique_ptr<sched::Scheduler> scheduler,
               std::unique_ptr<Executor> executor, const Clock& clock)
    : options_(std::move(options)),
      executor_(std::move(executor)),
      clock_(clock),
      scheduler_(std::move(scheduler)),
      prefill_(options_.scheduler.costs) {}

Engine::~Engine() {
  Drain(Duration{});
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

Result<RequestId> Engine::Submit(EngineRequest request, OutputSink sink) {
  MutexLock lock(mutex_);
  if (draining_) return Unavailable("the server is shutting down and takes no new requests");
  RequestId id(next_request_++);
  sched::NewRequest added;
  added.id = id;
  added.seed = request.params.seed.value_or(HashCounter(options_.seed, id.value()));
  added.prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt));
  added.params = std::make_shared<const SamplingParams>(std::move(request.params));
  added.priority = request.priority;
  added.cache_salt = std::move(request.cache_salt);
  MR_RETURN_IF_ERROR(scheduler_->Add(std::move(added), clock_.Now()));
  sinks_.emplace(id, std::move(sink));
  work_.notify_one();
  return id;
}

void Engine::Abort(RequestId request, std::optional<int> index) {
  MutexLock lock(mutex_);
  scheduler_->Abort(request, index, clock_.Now(), outputs_);
  work_.notify_one();
}

EngineStats Engine::Stats() const {
  MutexLock lock(mutex_);
  EngineStats stats = stats_;
  stats.scheduler = scheduler_->Stats();
  stats.stalled = scheduler_->Stalled(clock_.Now());
  stats.draining = draining_;
  return stats;
}

std::optional<sched::RequestInfo> Engine::Inspect(RequestId request) const {
  MutexLock lock(mutex_);
  return scheduler_->Inspect(request, clock_.Now());
}

std::vector<sched::RequestInfo> Engine::InspectAll() const {
  MutexLock lock(mutex_);
  return scheduler_->InspectAll(clock_.Now());
}

bool Engine::Drain(Duration limit) {
  MutexLock lock(mutex_);
  draining_ = true;
  auto done = [this]() MR_REQUIRES(mutex_) { return sinks_.empty() && delivering_.empty(); };
  if (idle_.wait_for(lock, std::chrono::nanoseconds(limit.ns), done)) return true;
  for (const auto& [id, sink] : sinks_) {
    scheduler_->Abort(id, std::nullopt, clock_.Now(), outputs_);
  }
  work_.notify_one();
  idle_.wait(lock, done);
  return false;
}

void Engine::Run() {
  while (true) {
    bool moved = StepOnce();
    Deliver();
    if (moved) continue;
    MutexLock lock(mutex_);
    if (!outputs_.empty()) continue;
    if (stopping_) return;
    if (scheduler_->HasWork()) {
      work_.wait_for(lock, kBlockedPoll);
    } else {
      work_.wait(lock, [this]() MR_REQUIRES(mutex_) {
        return stopping_ || scheduler_->HasWork() || !outputs_.empty();
      });
    }
  }
}

bool Engine::StepOnce() {
  while (true) {  // as many steps in flight as the executor has stages
    const StepPlan* plan = nullptr;
    {
      MutexLock lock(mutex_);
      plan = scheduler_->Schedule(clock_.Now());
      if (plan == nullptr) break;
      CountIteration(*plan);
    }
    prefill_.Submitted(*plan, clock_.Now());
    executor_->Submit(*plan);
  }
  {
    MutexLock lock(mutex_);
    LogPreemptions();
    if (scheduler_->steps_in_flight() == 0) return false;
  }
  const StepResult& result = executor_->Wait();
  MutexLock lock(mutex_);
  const Time now = clock_.Now();  // under the lock, so that calls and times have the same order
  if (options_.scheduler.stages == 1) {
    if (const auto costs = prefill_.Done(result.id, now)) scheduler_->SetCosts(*costs);
  }
  scheduler_->Commit(result, now, outputs_);
  return true;
}

// Outputs are delivered outside the lock, because a sink may submit or abort.
void Engine::Deliver() {
  MutexLock lock(mutex_);
  delivering_.swap(outputs_);
  for (RequestOutput& output : delivering_) {
    auto found = sinks_.find(output.request);
    if (found == sinks_.end()) continue;
    const bool last = output.times.has_value();
    OutputSink ended;
    const OutputSink* sink = &found->second;  // stable: only this thread erases
    if (last) {
      ended = std::move(found->second);
      sink = &ended;
      sinks_.erase(found);
    }
    lock.unlock();
    (*sink)(std::move(output));
    lock.lock();
  }
  delivering_.clear();
  if (sinks_.empty()) idle_.notify_all();
}

void Engine::CountIteration(const StepPlan& plan) {
  const auto tokens = static_cast<int>(plan.tokens.size());
  auto bound = std::lower_bound(kIterationTokenBounds.begin(), kIterationTokenBounds.end(), tokens);
  ++stats_.iteration_tokens[static_cast<size_t>(bound - kIterationTokenBounds.begin())];
  stats_.iteration_tokens_sum += static_cast<uint64_t>(tokens);
}

void Engine::LogPreemptions() {
  preemptions_.clear();
  scheduler_->DrainPreemptions(preemptions_);
  for (const sched::PreemptionRecord& p : preemptions_) MR_LOG(info, "{}", p.Describe());
}

}  // namespace millrace::engine
