// Engine: one thread that schedules, executes and commits, for ever (Orca, figure 5: request pool,
// scheduler, engine). Front ends submit from any thread and get news through a sink.
//
// Ownership: the Engine owns its scheduler, executor and thread. A sink is kept until the request's
// last news has been delivered and called from the engine's thread only.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "engine/executor.h"
#include "sched/scheduler.h"

namespace millrace::engine {

struct EngineRequest {
  std::string external_id;      // the client's x-request-id, for logs; need not be unique
  std::vector<TokenId> prompt;  // at least one token, each inside the vocabulary
  SamplingParams params;        // validated
  int priority = 0;             // smaller runs first under the priority policy
  std::string cache_salt;       // requests share prefix blocks only within the same salt
};

// Called for every sequence of the request, in order. Must not block.
using OutputSink = std::function<void(RequestOutput&&)>;

// Upper bounds of the histogram of tokens per step; vLLM's buckets.
inline constexpr std::array<int, 15> kIterationTokenBounds = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};

struct EngineStats {
  sched::SchedulerStats scheduler;
  std::array<uint64_t, kIterationTokenBounds.size() + 1> iteration_tokens = {};  // last: beyond
  uint64_t iteration_tokens_sum = 0;
  std::optional<sched::RequestInfo> stalled;  // could run but has not moved (watchdog)
  bool draining = false;
};

struct EngineOptions {
  sched::SchedulerOptions scheduler;  // block and stage counts are taken from the executor's traits
  uint64_t seed = 0;                  // for requests that bring none
  // Gets every line of the step log (sched/step_log.h), under the engine's lock. Empty: no log.
  std::function<void(std::string_view)> step_log;
};

class Engine {
 public:
  // `clock` must outlive the engine. kInvalidArgument when the options contradict each other.
  static Result<std::unique_ptr<Engine>> Start(EngineOptions options,
                                               std::unique_ptr<Executor> executor,
                                               const Clock& clock);
  ~Engine();  // aborts what is left and joins the thread

  // Any thread. kInvalidArgument: can never fit, with the numbers. kResourceExhausted: the waiting
  // queue is full. kUnavailable: draining. The sink may be called before Submit returns.
  Result<RequestId> Submit(EngineRequest request, OutputSink sink);
  // Any thread, any moment, any number of times; what has ended is ignored. With `index` only that
  // sequence ends. The sink gets kAbort for every sequence that had not finished.
  void Abort(RequestId request, std::optional<int> index = {});

  EngineStats Stats() const;
  // nullopt when the request is not, or no longer, known.
  std::optional<sched::RequestInfo> Inspect(RequestId request) const;
  std::vector<sched::RequestInfo> InspectAll() const;

  // Refuses new requests from now on. Returns true when all have finished within `limit`; else
  // aborts the rest, waits for that and returns false.
  bool Drain(Duration limit);

 private:
  Engine(EngineOptions options, std::unique_ptr<sched::Scheduler> scheduler,
         std::unique_ptr<Executor> executor, const Clock& clock);

  void Run();
  // One iteration; false when there was nothing to do.
  bool StepOnce();
  void Deliver();
  void CountIteration(const StepPlan& plan);
  void MeasurePrefillRate(Duration took);
  void LogPreemptions();

  const EngineOptions options_;
  const std::unique_ptr<Executor> executor_;  // engine's thread only
  const Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable work_;                      // something was submitted, aborted or stopped
  std::condition_variable idle_;                      // no request is left
  std::unique_ptr<sched::Scheduler> scheduler_;       // guarded by mutex_
  std::unordered_map<RequestId, OutputSink> sinks_;   // guarded by mutex_
  std::vector<RequestOutput> outputs_;                // guarded by mutex_
  std::vector<sched::PreemptionRecord> preemptions_;  // guarded by mutex_
  EngineStats stats_;                                 // guarded by mutex_
  uint64_t next_request_ = 1;                         // guarded by mutex_
  bool draining_ = false;                             // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_

  // Engine's thread only.
  std::vector<RequestOutput> delivering_;  // swapped with outputs_
  sched::PreemptionCosts costs_;           // as last told to the scheduler
  int step_tokens_ = 0;                    // of the step submitted last
  std::thread thread_;
};

}  // namespace millrace::engine
