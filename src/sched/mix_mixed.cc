// Orca's Select (Algorithm 1) over token counts: first who runs, in order; then who waits.
#include "sched/scheduler_impl.h"

namespace millrace::sched {

void SchedulerImpl::FillMixed(StepRoom& room, Time now) {
  // By position: preemption takes requests off the end.
  for (size_t i = 0; i < running_.size() && room.tokens > 0 && room.sequences > 0; ++i) {
    ScheduleRunning(i, room);
  }
  room.decodes_behind = 0;
  if (!room.blocked && !room.preempted) AdmitWaiting(room, now);
}

}  // namespace millrace::sched
