// Orca's Select (Algorithm 1) over token counts: first running requests in order, then waiting
// ones.
#include "sched/prefetch.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

// Most running requests are in the other steps in flight; only that field of them is read.
void SchedulerImpl::PrefetchAfter(size_t position) const {
  const std::vector<Request*>& running = requests_.running();
  const auto ready = [&](size_t i) { return i < running.size() && !running[i]->in_flight; };
  const size_t tails = position + kPrefetchAhead, rest = tails + kPrefetchAhead;
  if (const size_t head = rest + kPrefetchAhead; head < running.size()) {
    PrefetchHead(*running[head]);
  }
  if (ready(rest)) {
    Prefetch(*running[rest]);
    Prefetch(running[rest]->sequences.front());
  }
  if (ready(tails)) PrefetchTails(running[tails]->sequences.front(), *running[tails]);
}

void SchedulerImpl::FillMixed(StepRoom& room, Time now) {
  // By position, because preemption removes requests from the end.
  for (size_t i = 0; i < requests_.running().size() && room.tokens > 0 && room.sequences > 0; ++i) {
    PrefetchAfter(i);
    ScheduleRunning(i, room);
  }
  room.decodes_behind = 0;
  if (!room.blocked && room.preemptions.empty()) AdmitWaiting(room, now);
}

}  // namespace millrace::sched
