#include "sched/fair_shares.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sched {

FairShares::Slot FairShares::Arrives(const std::string& client) {
  const auto [name, is_new] = slots_.try_emplace(client, 0);
  if (is_new) {
    if (free_.empty()) {
      free_.push_back(static_cast<Slot>(clients_.size()));
      clients_.emplace_back();
    }
    name->second = free_.back();
    free_.pop_back();
    clients_[static_cast<size_t>(name->second)] = {.name = name};
  }
  const Slot slot = name->second;
  Client& c = clients_[static_cast<size_t>(slot)];
  if (!is_new && c.requests == 0) --idle_;
  ++c.requests;
  if (c.waiting == 0) {
    if (const auto first = First()) floor_ = std::max(floor_, served(*first));
    c.served = std::max(c.served, floor_);
  }
  ++c.waiting;
  return slot;
}

void FairShares::Dequeued(Slot slot) {
  Client& c = clients_[static_cast<size_t>(slot)];
  MR_CHECK(c.waiting > 0);
  if (--c.waiting == 0 && !First()) floor_ = std::max(floor_, c.served);
}

void FairShares::Leaves(Slot slot) {
  Client& c = clients_[static_cast<size_t>(slot)];
  MR_CHECK(c.requests > c.waiting);
  if (--c.requests > 0) return;
  if (++idle_ > kIdleClientsMax) ForgetOne();
}

void FairShares::ForgetOne() {
  std::optional<Slot> least;
  for (const auto& [name, slot] : slots_) {
    if (clients_[static_cast<size_t>(slot)].requests > 0) continue;
    if (!least || served(slot) < served(*least)) least = slot;
  }
  MR_CHECK(least.has_value());
  slots_.erase(clients_[static_cast<size_t>(*least)].name);
  free_.push_back(*least);
  --idle_;
}

std::optional<FairShares::Slot> FairShares::First() const {
  std::optional<Slot> first;
  for (const auto& [name, slot] : slots_) {
    const Client& c = clients_[static_cast<size_t>(slot)];
    if (c.waiting > 0 && (!first || c.served < served(*first))) first = slot;
  }
  return first;
}

}  // namespace millrace::sched
