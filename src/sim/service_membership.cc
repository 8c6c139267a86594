// Instances that come and go. Requests wait while no instance takes them. They leave a leaving
// instance with the KV they have, and are recomputed if their instance is lost. As in the
// controller, the production scheduler decides what leaves and what continues.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sim/service.h"

namespace millrace::sim {
namespace {

constexpr size_t kParkedMax = size_t{1} << 20;

}  // namespace

Status Service::BeginMembership() {
  if (options_.membership.empty()) return OkStatus();
  for (const MembershipChange& change : options_.membership) {
    MR_CHECK(change.instance >= 0 && change.instance < std::ssize(instances_)) << change.instance;
  }
  if (!decodes_.empty()) {
    return InvalidArgument("instances that come and go must serve both phases");
  }
  entries_.clear();
  return OkStatus();
}

// None if another event comes first, or if nothing is left that it could affect.
std::optional<Time> Service::NextChange() const {
  if (next_change_ == options_.membership.size()) return std::nullopt;
  const Time at = options_.membership[next_change_].at;
  if (events_.empty()) return parked_.empty() ? std::nullopt : std::optional(at);
  return at <= events_.next_time() ? std::optional(at) : std::nullopt;
}

void Service::Change(Time now) {
  const MembershipChange& change = options_.membership[next_change_++];
  const Availability::Change news = availability_.Apply(change, now);
  CountEntries();
  switch (news) {
    case Availability::Change::kNone: break;
    case Availability::Change::kReady:
      while (!parked_.empty()) {
        Place(std::move(parked_.front()), now);
        parked_.pop_front();
      }
      break;
    case Availability::Change::kLeaving: Leave(change.instance, now); break;
    case Availability::Change::kLost: Lose(change.instance, now); break;
  }
}

void Service::CountEntries() {
  entries_.clear();
  for (int i = 0; i < std::ssize(instances_); ++i) {
    if (availability_.ready(i)) entries_.push_back(i);
  }
}

// Requests without KV leave at once. The KV of the others is copied one after another while they
// run.
void Service::Leave(int index, Time now) {
  if (options_.on_notice == OnNotice::kFinish || entries_.empty()) return;
  sched::Scheduler& scheduler = instances_[index]->scheduler();
  for (const sched::RequestInfo& info : scheduler.InspectAll(now)) {
    const auto here = scheduler.Peek(info.id);
    if (!here) continue;
    if (here->computed_tokens() == 0) {
      TakeOut(info.id, index);
      moves_.replayed += info.computed_tokens > 0;
      moves_.replayed_tokens += static_cast<uint64_t>(info.computed_tokens);
      Place(std::move(scheduler.Detach(info.id, now, std::nullopt)->request), now);
      continue;
    }
    const double bytes = options_.kv_transfer.kv_bytes_per_token * here->computed_tokens();
    const Duration sending = Duration::Seconds(bytes / options_.kv_transfer.bytes_per_s);
    link_free_[index] = std::max(link_free_[index], now) + sending;
    link_busy_[index] = link_busy_[index] + sending;
    const int slot = copies_.Take({info.id, index, here->computed_tokens()});
    events_.Push(link_free_[index], {What::kCopied, availability_.life(index), slot});
  }
  Submit(index, now);
}

void Service::EndCopy(int slot, uint16_t life, Time now) {
  const Copy copy = copies_[slot];
  copies_.Free(slot);
  if (life != availability_.life(copy.from)) return;
  copied_[copy.from].push_back(copy);
  MoveCopied(copy.from, now);
  Submit(copy.from, now);
}

void Service::MoveCopied(int index, Time now) {
  std::erase_if(copied_[index], [&](const Copy& copy) { return TryMove(copy, now); });
}

// Returns false while a step in flight holds the request.
bool Service::TryMove(const Copy& copy, Time now) {
  sched::Scheduler& scheduler = instances_[copy.from]->scheduler();
  if (entries_.empty()) {
    scheduler.Unpause(copy.id);  // no destination: it continues here
    return true;
  }
  if (!scheduler.Peek(copy.id)) return true;  // it has ended
  if (!scheduler.Pause(copy.id)) return false;
  auto gone = scheduler.Detach(copy.id, now, options_.kv_transfer.lease);
  if (gone->computed_tokens() > 0) gone->request.imported_tokens = {gone->kv.front().tokens};
  TakeOut(copy.id, copy.from);
  handed_[copy.id] = {copy.from, now, copy.tokens};
  ++(gone->computed_tokens() > 0 ? moves_.moved : moves_.replayed);
  Place(std::move(gone->request), now);
  return true;
}

void Service::Lose(int index, Time now) {
  Instance& instance = *instances_[index];
  for (const sched::RequestInfo& info : instance.scheduler().InspectAll(now)) {
    moves_.replayed += info.computed_tokens > 0;
    moves_.replayed_tokens += static_cast<uint64_t>(info.computed_tokens);
  }
  std::vector<sched::DetachedRequest> gone = instance.scheduler().DetachAll(now);
  for (const sched::DetachedRequest& left : gone) TakeOut(left.request.id, index);
  instance.Restart(now);
  copied_[index].clear();
  link_free_[index] = now;
  for (sched::DetachedRequest& left : gone) Place(std::move(left.request), now);
}

void Service::TakeOut(RequestId id, int from) {
  instances_[from]->NoteEnded();
  if (prefill_ahead_.empty() || recorder_.HasSpoken(id)) return;
  const Duration prefill = PrefillTime(from, recorder_.request(id).prompt_tokens);
  prefill_ahead_[from] = prefill_ahead_[from] - prefill;
}

void Service::Park(sched::NewRequest request) {
  if (parked_.size() >= kParkedMax) {
    recorder_.Refused(request.id);
    return;
  }
  parked_.push_back(std::move(request));
  moves_.waited_most = std::max(moves_.waited_most, uint64_t{parked_.size()});
}

void Service::Place(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  if (request.imported_tokens.empty()) DropHandedKv(id);
  if (entries_.empty()) {
    Park(std::move(request));
    return;
  }
  if (!Give(Dispatch(entries_), std::move(request), now)) DropHandedKv(id);
}

void Service::DropHandedKv(RequestId id) {
  const auto handed = handed_.extract(id);
  if (!handed.empty()) instances_[handed.mapped().from]->scheduler().ReleaseKv(id);
}

}  // namespace millrace::sim
