// Instance: one replica of a model on the virtual clock. It owns the production scheduler and
// drives it exactly as the server's engine does; only the executor is modelled: a pipeline of
// stages whose step times a cost::StepCost tells. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "core/plan.h"
#include "core/step_plan.h"
#include "cost/pace.h"
#include "cost/step_cost.h"
#include "sched/scheduler.h"

namespace millrace::sim {

struct InstanceOptions {
  StageRole role = StageRole::kBoth;
  sched::SchedulerOptions scheduler;  // `stages` is set from the number of costs
  // One per pipeline stage, in order. Not owned; outlives the instance.
  std::vector<const cost::StepCost*> stages;
  // How evenly the stages work, each from another moment on; null: always as usual. Not owned.
  const cost::Pace* pace = nullptr;
  double pace_from_s = 0;
  double scheduler_overhead_s = 0;          // between a result and the next step
  double scheduler_overhead_per_seq_s = 0;  // the same, for every sequence of the step
  double arrival_s = 0;         // taken from the step under way by each client's request
  double swap_s_per_block = 0;  // KV to the host or back, before the step runs
  double hop_s = 0;             // from a stage to the next, before any bytes
  double hop_s_per_token = 0;   // activation bytes over the link's bandwidth
};

// A step as it went through the stages, for timelines and for comparing with a live run.
struct StepRecord {
  StepId id;
  cost::BatchShape batch;
  std::vector<Time> begin, end;  // per stage
};

// What an instance did, for reports.
struct InstanceUse {
  uint64_t steps = 0;
  uint64_t sequences = 0;          // summed over the steps
  uint64_t prefill_tokens = 0;     // the same
  uint64_t full_of_sequences = 0;  // steps with max_num_seqs
  uint64_t full_of_tokens = 0;     // steps with max_num_batched_tokens
  int kv_blocks = 0, kv_blocks_peak = 0;
  double kv_block_seconds = 0;    // blocks in use, over time
  uint64_t preemptions = 0;       // of schedulers that were lost
  std::optional<double> ready_s;  // where it came and went; else all the time

  double MeanBatch() const {
    return steps == 0 ? 0 : static_cast<double>(sequences) / static_cast<double>(steps);
  }
};

// What a step's composition costs by: what StepCost wants to know of a plan.
cost::BatchShape ShapeOf(const StepPlan& plan);
// What a simulated request asks for: exactly so many tokens.
std::shared_ptr<const SamplingParams> ParamsFor(int output_tokens);
// The executor's answer: every sampled token is 0; nothing in a simulation reads it, and no EOS is
// set. `result` keeps its memory.
void AnswerTo(const StepPlan& plan, StepResult& result);

// What such an answer takes of a plan: of a step in flight only this is kept, an eighth of the
// answer, since the steps of all instances together outgrow the caches.
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
  // kInvalidArgument when the scheduler refuses its options.
  static Result<std::unique_ptr<Instance>> Create(const InstanceOptions& options);

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }

  // Submits every step that can start now. Each submitted step ends at the time appended to `ends`,
  // in order; the caller calls Finish at each.
  void Submit(Time now, std::vector<Time>& ends);
  // The oldest step in flight ended at `now`. Outputs are appended; `result` is overwritten, and
  // may be every instance's. REQUIRES: one is in flight.
  void Finish(Time now, StepResult& result, std::vector<RequestOutput>& outputs);

  // Its machine is lost, and all that was in memory: another one begins with nothing in flight.
  void Restart(Time now);

  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  Duration busy(int stage) const { return stages_[stage].busy; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  uint64_t steps() const { return use_.steps; }
  const InstanceUse& use() const { return use_; }
  // Computed tokens that wait or run: what a dispatcher may compare instances by.
  int64_t pending_requests() const { return pending_requests_; }
  // A client's request comes, and takes its time from the step under way. REQUIRES: before a step
  // is submitted that begins with it.
  void NoteArrival() {
    if (!in_flight_.empty()) owed_s_ += options_.arrival_s;
  }
  void NoteAdded() { ++pending_requests_; }
  void NoteEnded() { --pending_requests_; }

  // Called with every step when it is submitted.
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
  std::vector<Stage> stages_;
  std::deque<InFlight> in_flight_;
  std::vector<StepAnswer> spare_;
  StepRecord record_;
  InstanceUse use_;
  // What arrivals took from steps whose ends are told already: the next step begins later.
  double owed_s_ = 0;
  int kv_blocks_now_ = 0;
  Time kv_counted_;
  int64_t pending_requests_ = 0;
};

}  // namespace millrace::sim
