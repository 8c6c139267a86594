// StepResults: what the result of a step does to its sequences: tokens, logprobs and beams are
// taken, KV counts as computed, and sequences end or fail.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "core/step_plan.h"
#include "kv/kv_cache.h"
#include "sched/accounting.h"
#include "sched/beam_sequences.h"
#include "sched/endings.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/result_check.h"
#include "sched/scheduler.h"
#include "sched/step_builder.h"
#include "sched/step_ledger.h"
#include "sched/waiting_order.h"

namespace millrace::sched {

class StepResults {
 public:
  struct Parts {  // not owned; they outlive this object
    const SchedulerOptions& options;
    kv::KvCache& kv;
    WaitingOrder& order;
    StepBuilder& builder;
    PromptForks& forks;
    const Accounting& accounting;
    Endings& endings;
    SchedulerStats& stats;
    uint64_t& next_sequence;  // the next free id
  };
  explicit StepResults(const Parts& parts)
      : parts_(parts),
        beams_(parts.kv, parts.builder, parts.next_sequence),
        check_(parts.options.check_results, parts.options.eos_token_ids) {}

  // Applies what the stages returned for `step`, which is no longer in flight. Outputs are
  // appended.
  void Apply(const StepResult& result, const StepLedger::Step& step, Time now,
             std::vector<RequestOutput>& outputs);
  // kInvalidArgument: why some result was not taken; ok: there was none.
  const Status& wrong() const { return check_.wrong(); }

 private:
  void ApplyOne(const StepLedger::Step& step, const StepLedger::Entry& entry,
                const Status& step_error, const SequenceResult* result, Time now,
                std::vector<RequestOutput>& outputs);
  void AdvanceComputed(const StepLedger::Entry& entry);
  void NoteOutput(Request& request, int tokens, Time now);
  void TakeOutput(Sequence& sequence, const SequenceResult& result, Time now,
                  std::vector<RequestOutput>& outputs);
  void TakeBeam(Sequence& sequence, const SequenceResult& result, bool kept, Time now,
                std::vector<RequestOutput>& outputs);
  void Fail(Sequence& sequence, const Status& error, std::vector<RequestOutput>& outputs);

  const Parts parts_;
  BeamSequences beams_;
  ResultCheck check_;
};

}  // namespace millrace::sched
