// Harness: a scheduler with a ContextHashModel behind it and `stages` steps in flight, for tests
// and scenario scripts. Audits the scheduler after every change. One thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "sched/scheduler.h"
#include "sched/testing/context_hash_model.h"

namespace millrace::sched {

struct HarnessOptions {
  SchedulerOptions scheduler;
  int vocab_size = 1000;
  // Number of layers, each with its own KV; all must return the same result.
  int layers = 1;
  bool audit = true;                               // CheckIntegrity after every call
  std::function<void(std::string_view)> step_log;  // gets every line, when set
};

// The result of one sequence.
struct SequenceOutcome {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::vector<float> pooled;
  std::optional<FinishReason> finish;
  bool ended = false;  // without a reason: stopped after its prompt
  int cached_prompt_tokens = 0;
  Status error;
};

class Harness {
 public:
  explicit Harness(const HarnessOptions& options);

  Scheduler& scheduler() { return *scheduler_; }
  const ContextHashModel& model() const { return models_.front(); }
  ContextHashModel& model(int layer = 0) { return models_[static_cast<size_t>(layer)]; }
  int layers() const { return options_.layers; }
  Time now() const { return now_; }
  void Advance(Duration d) { now_ = now_ + d; }

  // Request ids count from 1.
  Result<RequestId> Add(std::vector<TokenId> prompt, const SamplingParams& params,
                        const std::function<void(NewRequest&)>& change = {});
  // The same for tests in which a refusal would be a mistake.
  RequestId MustAdd(std::vector<TokenId> prompt, const SamplingParams& params,
                    const std::function<void(NewRequest&)>& change = {});
  // Unchanged, including its id.
  Status AddAsIs(NewRequest request);
  void Abort(RequestId id, std::optional<int> index = {});
  Status ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                      const std::vector<int>& imported_tokens);
  // Of one sequence.
  Status ExtendImport(RequestId id, std::vector<TokenId> more_output, int imported_tokens);
  // Builds a step and passes it to the model; nullptr when there is none.
  const StepPlan* Schedule();
  // Commits the oldest step in flight; `change` may modify its result.
  void Commit(const std::function<void(StepResult&)>& change = {});
  // Schedules what it can, then commits one step. False when neither was possible.
  bool Turn();
  // Takes turns until no work is left. REQUIRES: at most `turns_max` turns.
  void RunToEnd(int turns_max = 1'000'000);

  int in_flight() const { return static_cast<int>(flights_.size()); }
  const SequenceOutcome& outcome(RequestId id, int index = 0) const;
  bool finished(RequestId id) const;
  // Every output since the last call.
  std::vector<RequestOutput> TakeOutputs() { return std::exchange(outputs_, {}); }
  // Every pull since the last call.
  std::vector<KvPull> TakePulls() { return std::exchange(pulls_, {}); }
  // Every preemption since the last call.
  std::vector<PreemptionRecord> TakePreemptions() { return std::exchange(preemptions_, {}); }

 private:
  using Prompt = std::shared_ptr<const std::vector<TokenId>>;
  struct Flight {
    StepPlan plan;
    std::map<BlockIndex, Prompt> blocks;  // read or written by the step, with their prompt
  };

  StepResult Run(const StepPlan& plan);
  void Collect();
  void Audit();
  // Checks that no step writes a block that an earlier step in flight still uses for another
  // request. The last of several sequences may write a block that an ended one was reading: steps
  // run in order.
  void CheckWrites(const StepPlan& plan);

  HarnessOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<ContextHashModel> models_;
  Time now_;
  uint64_t next_id_ = 1;
  std::deque<Flight> flights_;
  std::map<SequenceId, std::vector<BlockIndex>> tables_;
  std::map<SequenceId, Prompt> prompts_;
  std::vector<RequestOutput> fresh_;
  std::vector<RequestOutput> outputs_;
  std::vector<KvPull> pulls_;
  std::vector<PreemptionRecord> preemptions_;
  std::map<std::pair<RequestId, int>, SequenceOutcome> outcomes_;
  std::map<RequestId, int> sequences_;
};

}  // namespace millrace::sched
