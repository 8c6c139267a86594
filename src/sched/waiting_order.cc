#include "sched/waiting_order.h"

#include <optional>
#include <utility>

namespace millrace::sched {

void WaitingOrder::Join(Request& request) {
  request.key = policy_->Join(request.spec, request.times.arrived, next_number_++, request.client);
  request.queued = policy_->reorders() && request.key.rank != OrderPolicy::kStartedRank;
}

Request* WaitingOrder::Next() const {
  const RequestTable::Queue& waiting = requests_.waiting();
  const auto from = [&](RequestTable::Queue::const_iterator place) {
    while (place != waiting.end() && place->second->paused) ++place;
    return place == waiting.end() ? nullptr : place->second;
  };
  Request* first = from(waiting.begin());
  if (first == nullptr || !first->queued) return first;
  const std::optional<int64_t> rank = policy_->NextRank();
  Request* next = from(waiting.lower_bound(OrderKey{*rank, Time{}, 0}));
  return next != nullptr && next->key.rank == *rank ? next : first;
}

void WaitingOrder::Starts(Request& request) {
  if (!std::exchange(request.queued, false)) return;
  requests_.Reorder(request, policy_->Start(request.client, next_number_++));
}

void WaitingOrder::Leaves(Request& request) {
  if (std::exchange(request.queued, false)) policy_->Drop(request.client);
  policy_->Leave(request.client);
}

}  // namespace millrace::sched
