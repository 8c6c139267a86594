// Engine: one thread that schedules, executes and commits in a loop (Orca, figure 5: request pool,
// scheduler, engine). Front ends submit from any thread and get output through a sink.
//
// Ownership: the Engine owns its scheduler, executor and thread. A sink is kept until the request's
// last output was delivered, and is called from the engine's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/generator.h"
#include "sched/prefill_meter.h"
#include "sched/scheduler.h"

namespace millrace::engine {

struct EngineOptions {
  sched::SchedulerOptions scheduler;  // block and stage counts are taken from the executor's traits
  uint64_t seed = 0;                  // for requests without a seed
  // Receives every line of the step log (sched/step_log.h), under the engine's lock. Empty: no log.
  std::function<void(std::string_view)> step_log;
};

class Engine final : public Generator {
 public:
  // `clock` must outlive the engine. kInvalidArgument when the options contradict each other.
  static Result<std::unique_ptr<Engine>> Start(EngineOptions options,
                                               std::unique_ptr<Executor> executor,
                                               const Clock& clock);
  ~Engine() override;  // aborts the remaining requests and joins the thread

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
  // One iteration; false when there was no work.
  bool StepOnce();
  void Deliver();
  void CountIteration(const StepPlan& plan) MR_REQUIRES(mutex_);
  void LogPreemptions() MR_REQUIRES(mutex_);

  const EngineOptions options_;
  const std::unique_ptr<Executor> executor_;  // engine's thread only
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar work_;  // something was submitted, aborted or stopped
  CondVar idle_;  // no request is left, and all outputs are delivered
  std::unique_ptr<sched::Scheduler> scheduler_ MR_GUARDED_BY(mutex_);
  std::unordered_map<RequestId, OutputSink> sinks_ MR_GUARDED_BY(mutex_);
  std::vector<RequestOutput> outputs_ MR_GUARDED_BY(mutex_);
  std::vector<sched::PreemptionRecord> preemptions_ MR_GUARDED_BY(mutex_);
  EngineStats stats_ MR_GUARDED_BY(mutex_);
  uint64_t next_request_ MR_GUARDED_BY(mutex_) = 1;
  bool draining_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;

  // Being delivered to the sinks, one by one. It is filled and emptied under mutex_; in between the
  // engine's thread alone changes its elements.
  std::vector<RequestOutput> delivering_ MR_GUARDED_BY(mutex_);
  // Engine's thread only.
  sched::PrefillMeter prefill_;
  std::thread thread_;
};

}  // namespace millrace::engine
