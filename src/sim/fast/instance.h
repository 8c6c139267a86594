// Instance: one replica of a model on the virtual clock. It owns the production scheduler and
// drives it exactly like the controller. Only its stages are modelled: a pipeline of stages
// whose step times come from a cost::StepCost. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "core/step_plan.h"
#include "cost/pace.h"
#include "cost/step_cost.h"
#include "sched/scheduler.h"
#include "sched/step_budget.h"
#include "sched/step_timer.h"

namespace millrace::sim {

struct InstanceOptions {
  sched::SchedulerOptions scheduler;  // `stages` is set from the number of costs
  // One per pipeline stage, in order. Not owned; outlives the instance.
  std::vector<const cost::StepCost*> stages;
  // Varies the speed of the stages, each from a different moment on. Null: constant speed. Not
  // owned.
  const cost::Pace* pace = nullptr;
  double pace_from_s = 0;
  double scheduler_overhead_s = 0;          // between a result and the next step
  double scheduler_overhead_per_seq_s = 0;  // the same, per sequence of the step
  double arrival_s = 0;                     // added to the current step by each client's request
  double swap_s_per_block = 0;              // KV to the host or back, before the step runs
  double hop_s = 0;                         // from one stage to the next, without the bytes
  double hop_s_per_token = 0;               // activation bytes over the link's bandwidth
  std::optional<Duration> tpot_limit;       // as of cluster::ControllerOptions
};

// One step on its way through the stages, for timelines and for comparison with a live run.
struct StepRecord {
  StepId id;
  cost::BatchShape batch;
  std::vector<Time> begin, end;  // per stage
};

// Usage counters of an instance, for reports.
struct InstanceUse {
  uint64_t steps = 0;
  uint64_t sequences = 0;          // summed over steps
  uint64_t prefill_tokens = 0;     // summed over steps
  uint64_t full_of_sequences = 0;  // steps with max_num_seqs
  uint64_t full_of_tokens = 0;     // steps with max_num_batched_tokens
  int kv_blocks = 0, kv_blocks_peak = 0;
  double kv_block_seconds = 0;    // integral over time of the blocks in use
  uint64_t preemptions = 0;       // of schedulers that were lost
  std::optional<double> ready_s;  // if it came and went; otherwise the whole time

  double MeanBatch() const {
    return steps == 0 ? 0 : static_cast<double>(sequences) / static_cast<double>(steps);
  }
};

// The batch shape of a plan, as StepCost needs it.
cost::BatchShape ShapeOf(const StepPlan& plan);
// The stages' answer. Every sampled token is 0: the simulation does not read it, and no EOS is
// set. `result` keeps its memory.
void AnswerTo(const StepPlan& plan, StepResult& result);

// The part of a plan that its answer needs. Only this is kept of a step in flight, an eighth of the
// answer, because the steps of all instances together exceed the CPU caches.
struct StepAnswer {
  struct Entry {
    SequenceId sequence;
    bool samples = false;
  };
  StepId id;
  std::vector<Entry> entries;

  void Take(const StepPlan& plan);
  void WriteTo(StepResult& result) const;
};

class Instance {
 public:
  // kInvalidArgument if the scheduler rejects its options.
  static Result<std::unique_ptr<Instance>> Create(const InstanceOptions& options);

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }

  // Submits every step that can start now. Appends the end time of each to `ends`, in order; the
  // caller calls Finish at each.
  void Submit(Time now, std::vector<Time>& ends);
  // The oldest step in flight ended at `now`. Appends the outputs. Overwrites `result`, which all
  // instances may share. REQUIRES: a step is in flight.
  void Finish(Time now, StepResult& result, std::vector<RequestOutput>& outputs);

  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  Duration busy(int stage) const { return stages_[stage].busy; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  uint64_t steps() const { return use_.steps; }
  const InstanceUse& use() const { return use_; }
  // Requests that wait or run, for dispatchers.
  int64_t pending_requests() const { return pending_requests_; }
  // A client's request arrives and takes its time from the current step. REQUIRES: called before
  // the submission of a step that begins with it.
  void NoteArrival() {
    if (!in_flight_.empty()) owed_s_ += options_.arrival_s;
  }
  void NoteAdded() { ++pending_requests_; }
  void NoteEnded() { --pending_requests_; }

  // Called with every step at its submission.
  std::function<void(const StepRecord&)> on_step;

 private:
  struct Stage {
    const cost::StepCost* cost;
    Time free;
    Duration busy;
  };
  struct InFlight {
    Time end;
    StepAnswer answer;
  };

  Instance(const InstanceOptions& options, std::unique_ptr<sched::Scheduler> scheduler);
  Time RunThroughStages(const StepPlan& plan, Time now);
  Duration TimeOf(size_t stage, const cost::BatchShape& shape, Time begin) const;
  void CountKv(Time now);

  const InstanceOptions options_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::optional<sched::StepBudget> budget_;
  sched::StepTimer timer_;  // of budget_
  std::vector<Stage> stages_;
  std::deque<InFlight> in_flight_;
  std::vector<sched::KvPull> pulls_;  // scratch; nothing is pulled
  std::vector<StepAnswer> spare_;
  StepRecord record_;
  InstanceUse use_;
  // Time that arrivals took from steps whose ends are already reported: the next step begins later.
  double owed_s_ = 0;
  int kv_blocks_now_ = 0;
  Time kv_counted_;
  int64_t pending_requests_ = 0;
};

}  // namespace millrace::sim
