#include "sched/scheduler_impl.h"

namespace millrace::sched {

SchedulerView SchedulerImpl::View() const {
  return {options_,   kv_, requests_, ledger_, reservations_, pulls_, forks_.promised_blocks(),
          last_moved_};
}

SchedulerStats SchedulerImpl::Stats() const {
  SchedulerStats stats = stats_;
  CountNow(View(), stats);
  return stats;
}

std::optional<RequestInfo> SchedulerImpl::Inspect(RequestId id, Time now) const {
  const Request* r = requests_.FindEvenEnded(id);
  if (!r) return std::nullopt;
  return InfoOf(View(), *r, now);
}

std::vector<RequestInfo> SchedulerImpl::InspectAll(Time now) const {
  return InfoOfAll(View(), now);
}

std::optional<RequestInfo> SchedulerImpl::Stalled(Time now) const { return StalledIn(View(), now); }

void SchedulerImpl::CheckIntegrity() const { CheckIntegrityOf(View()); }

}  // namespace millrace::sched
