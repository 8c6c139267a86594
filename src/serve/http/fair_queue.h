// FairQueue: things that wait for a turn and belong to clients (API keys). The client that was
// served least goes first, by the counters that also share the steps of the controller
// (sched/fair_shares.h); within a client the oldest goes first. Without keys all belong to one
// client, and it is a plain queue.
//
// Not thread-safe: whoever owns it holds a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sched/fair_shares.h"

namespace millrace::serve {

template <typename T>
class FairQueue {
 public:
  // `cost` counts for the client when the thing gets its turn.
  void Push(const std::string& client, int64_t cost, T thing) {
    const Slot slot = shares_.Arrives(client);
    Waiting& waiting = clients_[slot];
    waiting.name = client;
    waiting.things.push_back({cost, std::move(thing)});
    Count(waiting, 1, cost);
  }

  std::optional<T> Pop() {
    const std::optional<Slot> first = shares_.First();
    if (!first) return std::nullopt;
    const int64_t cost = clients_.at(*first).things.front().first;
    shares_.Charge(*first, cost, 0);
    return Take(*first, 0);
  }

  // Makes room for a thing of `client`: takes the newest one of the client whose things cost most,
  // or nothing if that is `client` itself, with the new thing.
  std::optional<T> PushOut(const std::string& client, int64_t cost) {
    std::optional<Slot> most;
    int64_t own = cost;
    for (const auto& [slot, waiting] : clients_) {
      if (waiting.name == client) {
        own += waiting.cost;
      } else if (!most || waiting.cost > clients_.at(*most).cost) {
        most = slot;
      }
    }
    if (!most || clients_.at(*most).cost <= own) return std::nullopt;
    return Take(*most, clients_.at(*most).things.size() - 1);
  }

  // Takes those that are no longer wanted.
  std::vector<T> TakeIf(const std::function<bool(const T&)>& unwanted) {
    std::vector<T> taken;
    std::vector<Slot> slots;
    for (const auto& [slot, waiting] : clients_) slots.push_back(slot);
    for (const Slot slot : slots) {
      for (size_t i = clients_.at(slot).things.size(); i-- > 0;) {
        if (!unwanted(clients_.at(slot).things[i].second)) continue;
        const bool last = clients_.at(slot).things.size() == 1;
        taken.push_back(Take(slot, i));
        if (last) break;
      }
    }
    return taken;
  }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  int64_t cost() const { return cost_; }
  size_t size_of(const std::string& client) const {
    for (const auto& [slot, waiting] : clients_) {
      if (waiting.name == client) return waiting.things.size();
    }
    return 0;
  }

 private:
  using Slot = sched::FairShares::Slot;
  struct Waiting {
    std::string name;
    std::deque<std::pair<int64_t, T>> things;  // with their costs
    int64_t cost = 0;
  };

  void Count(Waiting& waiting, int things, int64_t cost) {
    size_ += static_cast<size_t>(things);
    cost_ += cost;
    waiting.cost += cost;
  }

  T Take(Slot slot, size_t index) {
    Waiting& waiting = clients_.at(slot);
    const auto at = waiting.things.begin() + static_cast<std::ptrdiff_t>(index);
    T thing = std::move(at->second);
    Count(waiting, -1, -at->first);
    waiting.things.erase(at);
    if (waiting.things.empty()) clients_.erase(slot);
    shares_.Dequeued(slot);
    shares_.Leaves(slot);
    return thing;
  }

  sched::FairShares shares_;
  std::map<Slot, Waiting> clients_;  // that have something here
  size_t size_ = 0;
  int64_t cost_ = 0;
};

}  // namespace millrace::serve
