// Requests that leave to continue in another scheduler: either paused, so that their last token
// here is known, or taken out immediately, because their pipeline is lost. Later samples for them
// are dropped: the next scheduler computes the same token.
#include <algorithm>
#include <utility>

#include "sched/scheduler_impl.h"
#include "sched/snapshot.h"

namespace millrace::sched {

void SchedulerImpl::Pause(RequestId id) {
  Request* r = requests_.Find(id);
  if (r) r->paused = true;
}

bool SchedulerImpl::AtRest(RequestId id) const {
  const Request* r = requests_.Find(id);
  return !r || r->in_flight == 0;
}

void SchedulerImpl::Unpause(RequestId id) {
  Request* r = requests_.Find(id);
  if (r) r->paused = false;
}

int DetachedRequest::computed_tokens() const {
  int most = 0;
  for (const SequenceKv& s : kv) most = std::max(most, s.tokens);
  return most;
}

std::optional<DetachedRequest> SchedulerImpl::Peek(RequestId id) const {
  const Request* r = requests_.Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  DetachedRequest here{.request = SnapshotOf(*r), .kv = {}};
  here.kv = CommittedKv(*r, kv_, &here.lacking);
  return here;
}

DetachedRequest SchedulerImpl::MakeDetached(const Request& request,
                                            std::optional<Time> hold_until) {
  DetachedRequest goes{.request = SnapshotOf(request), .kv = {}};
  if (!hold_until) return goes;
  std::vector<SequenceKv> kv = CommittedKv(request, kv_, nullptr);
  if (holds_.Hold(request.spec.id, kv, *hold_until)) goes.kv = std::move(kv);
  return goes;
}

std::optional<DetachedRequest> SchedulerImpl::Export(RequestId id, Time now, Duration hold_kv) {
  const Request* r = requests_.Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  return MakeDetached(*r, now + hold_kv);
}

std::optional<DetachedRequest> SchedulerImpl::Detach(RequestId id, Time now,
                                                     std::optional<Duration> hold_kv) {
  Request* r = requests_.Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  accounting_.Settle(*r, now);
  DetachedRequest goes = MakeDetached(*r, hold_kv ? std::optional(now + *hold_kv) : std::nullopt);
  endings_.Leave(*r);
  return goes;
}

std::vector<DetachedRequest> SchedulerImpl::DetachAll(Time now) {
  std::vector<std::pair<OrderKey, RequestId>> order;
  for (const auto& [id, r] : requests_.all()) {
    if (r->state != RequestState::kFinished) order.emplace_back(r->key, id);
  }
  std::ranges::sort(order);
  std::vector<DetachedRequest> left;
  for (const auto& [key, id] : order) left.push_back(*Detach(id, now, std::nullopt));
  return left;
}

}  // namespace millrace::sched
