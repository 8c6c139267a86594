// Imports: requests whose KV comes from another stage. They get blocks, pull, and run when all
// pulls have ended and nothing more is imported.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kv/kv_cache.h"
#include "sched/accounting.h"
#include "sched/endings.h"
#include "sched/kv_transfers.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/scheduler.h"
#include "sched/step_ledger.h"

namespace millrace::sched {

class Imports {
 public:
  struct Parts {  // not owned; they outlive this object
    kv::KvCache& kv;
    RequestTable& requests;
    const StepLedger& ledger;
    PromptForks& forks;
    IncomingPulls& pulls;
    const Accounting& accounting;
    Endings& endings;
    Time& last_moved;
  };
  explicit Imports(const Parts& parts) : parts_(parts) {}

  // An admitted request asks for its pulls. False: nothing needs to be imported.
  bool Start(Request& request);
  // As of Scheduler.
  void KvArrived(RequestId id, bool complete, Time now);
  void KvArrivedWithout(RequestId id, LayerRange lacking, Time now);
  Status Extend(RequestId id, const std::vector<ResumedSequence>& more,
                const std::vector<int>& imported_tokens, std::vector<KvPull>& pulls);
  void Close(RequestId id, Time now);

 private:
  void MaybeEnd(Request& request, Time now);
  void End(Request& request);

  const Parts parts_;
};

}  // namespace millrace::sched
