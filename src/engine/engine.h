// Engine: one thread that schedules, executes and commits, for ever (Orca, figure 5: request pool,
// scheduler, engine). Front ends submit from any thread and get news through a sink.
//
// Ownership: the Engine owns its scheduler, executor and thread. A sink is kept until the request's
// last news has been delivered and called from the engine's thread only.
#pragma once

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
#include "engine/executor.h"
#include "engine/generator.h"
#include "sched/prefill_meter.h"
#include "sched/scheduler.h"

namespace millrace::engine {

struct EngineOptions {
  sched::SchedulerOptions scheduler;  // block and stage counts are taken from the executor's traits
  uint64_t seed = 0;                  // for requests that bring none
  // Gets every line of the step log (sched/step_log.h), under the engine's lock. Empty: no log.
  std::function<void(std::string_view)> step_log;
};

class Engine final : public Generator {
 public:
  // `clock` must outlive the engine. kInvalidArgument when the options contradict each other.
  static Result<std::unique_ptr<Engine>> Start(EngineOptions options,
                                               std::unique_ptr<Executor> executor,
                                               const Clock& clock);
  ~Engine() override;  // aborts what is left and joins the thread

  Result<RequestId> Submit(EngineRequest request, OutputSink sink) override;
  void Abort(RequestId request, std::optional<int> index = {}) override;
  EngineStats Stats() const override;
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override;
  std::vector<sched::RequestInfo> InspectAll() const override;
  bool Drain(Duration limit) override;

 private:
  Engine(EngineOptions options, std::unique_ptr<sched::Scheduler> scheduler,
         std::unique_ptr<Executor> executor, const Clock& clock);

  void Run();
  // One iteration; false when there was nothing to do.
  bool StepOnce();
  void Deliver();
  void CountIteration(const StepPlan& plan);
  void LogPreemptions();

  const EngineOptions options_;
  const std::unique_ptr<Executor> executor_;  // engine's thread only
  const Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable work_;                      // something was submitted, aborted or stopped
  std::condition_variable idle_;                      // no request is left, and all is told
  std::unique_ptr<sched::Scheduler> scheduler_;       // guarded by mutex_
  std::unordered_map<RequestId, OutputSink> sinks_;   // guarded by mutex_
  std::vector<RequestOutput> outputs_;                // guarded by mutex_
  std::vector<sched::PreemptionRecord> preemptions_;  // guarded by mutex_
  EngineStats stats_;                                 // guarded by mutex_
  uint64_t next_request_ = 1;                         // guarded by mutex_
  bool draining_ = false;                             // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_

  // Being told to the sinks, one by one: engine's thread; filled and emptied under mutex_.
  std::vector<RequestOutput> delivering_;
  // Engine's thread only.
  sched::PrefillMeter prefill_;
  std::thread thread_;
};

}  // namespace millrace::engine
