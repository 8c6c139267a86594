// Endings: how sequences end one by one, and requests with the last of them, or leave for another
// scheduler: what they hold is given back, and what a sibling needs is handed over.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <optional>
#include <vector>

#include "core/output.h"
#include "kv/kv_cache.h"
#include "sched/kv_transfers.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/reservations.h"
#include "sched/scheduler.h"
#include "sched/step_builder.h"
#include "sched/step_ledger.h"
#include "sched/waiting_order.h"

namespace millrace::sched {

class Endings {
 public:
  struct Parts {  // not owned; they outlive this object
    kv::KvCache& kv;
    RequestTable& requests;
    WaitingOrder& order;
    StepLedger& ledger;
    StepBuilder& builder;
    PromptForks& forks;
    Reservations& reservations;
    KvHolds& holds;
    SchedulerStats& stats;
  };
  explicit Endings(const Parts& parts) : parts_(parts) {}

  // `output` is the sequence's last; the request's last output carries its times.
  void End(Sequence& sequence, FinishReason reason, RequestOutput& output);
  // The sequence ends here without an output, because it continues or has ended elsewhere.
  void Discard(Sequence& sequence);
  // Ends the request, or only its sequence `index`, with kAbort outputs.
  void Abort(Request& request, std::optional<int> index, std::vector<RequestOutput>& outputs);
  // The request continues elsewhere. Its id may be added again at once, even while steps in flight
  // still hold it.
  void Leave(Request& request);
  // A step in flight that held the ended request has ended.
  void NoteStepEnded(Request& request) {
    if (request.in_flight == 0 && request.state == RequestState::kFinished) Reap(request);
  }

 private:
  void LeaveOthers(Sequence& sequence);
  void Retire(Request& request);
  void Reap(Request& request);
  void HoldKv(const Sequence& sequence);

  const Parts parts_;
};

}  // namespace millrace::sched
