// Read-only views of a scheduler: counts, one request, why it waits, whether anything makes
// progress, whether the books agree. Pure functions of the parts of its state. Private to this
// folder.
#pragma once

#include <optional>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/kv_transfers.h"
#include "sched/request_table.h"
#include "sched/reservations.h"
#include "sched/scheduler.h"
#include "sched/step_ledger.h"

namespace millrace::sched {

// Valid while the scheduler is unchanged.
struct SchedulerView {
  const SchedulerOptions& options;
  const kv::KvCache& kv;
  const RequestTable& requests;
  const StepLedger& ledger;
  const Reservations& reservations;
  const IncomingPulls& pulls;
  int promised_blocks = 0;
  Time last_moved;
};

// Sets everything in `stats` but the counters since the start.
void CountNow(const SchedulerView& view, SchedulerStats& stats);
RequestInfo InfoOf(const SchedulerView& view, const Request& request, Time now);
std::vector<RequestInfo> InfoOfAll(const SchedulerView& view, Time now);
std::optional<RequestInfo> StalledIn(const SchedulerView& view, Time now);
// Checks every block and every count; crashes with the reason on a mismatch.
void CheckIntegrityOf(const SchedulerView& view);

}  // namespace millrace::sched
