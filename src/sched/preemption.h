// Preemption: which request gives way when blocks run out (vLLM section 4.5): the last in order,
// with all its sequences (all or nothing), by recompute or by swap, whichever has the lower
// predicted cost. And the way back of what was swapped.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <vector>

#include "kv/kv_cache.h"
#include "sched/accounting.h"
#include "sched/kv_transfers.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/reservations.h"
#include "sched/scheduler.h"
#include "sched/step_builder.h"
#include "sched/step_ledger.h"
#include "sched/step_room.h"

namespace millrace::sched {

class Preemption {
 public:
  struct Parts {  // not owned; they outlive this object
    const SchedulerOptions& options;
    kv::KvCache& kv;
    RequestTable& requests;
    StepLedger& ledger;
    StepBuilder& builder;
    PromptForks& forks;
    Reservations& reservations;
    IncomingPulls& pulls;
    const Accounting& accounting;
    SchedulerStats& stats;
  };
  explicit Preemption(const Parts& parts) : parts_(parts) {}

  // Makes `blocks` available to a running request. Those that were preempted for it are noted in
  // the room. False: it has to wait for them.
  bool Obtain(Request& request, int blocks, StepRoom& room);
  // A swapped-out request starts again. REQUIRES: the blocks are available.
  void SwapIn(Request& request);
  // No step was formed that could make the copies to the host.
  void DropUnsentSwaps();

 private:
  bool GrowReservation(Request& request, int blocks, StepRoom& room);
  void Preempt(Request& victim, const Request& beneficiary, int blocks_needed, StepRoom& room);
  void SwapOut(Request& victim);

  const Parts parts_;
  std::vector<kv::SwapMove> moves_;  // kept to reuse its memory
};

}  // namespace millrace::sched
