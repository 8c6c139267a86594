// FairShares: equal shares for clients, by a counter of the tokens that each was served (the
// virtual token counter of Sheng et al., OSDI'24, section 4). Of the clients with waiting requests,
// the one with the smallest counter goes first. A client that begins to wait again is lifted to the
// smallest counter of those that wait, so that it gains nothing by having been idle.
//
// Pure. Owned by an order policy; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::sched {

// A generated token costs a step of its own, so it counts for more than one of a prompt.
inline constexpr int64_t kOutputTokenWeight = 2;
// Clients without requests that are remembered. Beyond it, the one with the smallest counter is
// forgotten, which costs it least: it would probably be lifted when it returns.
inline constexpr int kIdleClientsMax = 4096;

class FairShares {
 public:
  // Of a client, while it has requests.
  using Slot = int;

  // It has one more request, which waits.
  Slot Arrives(const std::string& client);
  // One of its waiting requests was admitted or has ended.
  void Dequeued(Slot slot);
  // One of its requests has ended or left. REQUIRES: Dequeued was called for it.
  void Leaves(Slot slot);
  // Tokens of prompts and answers that were computed for it.
  void Charge(Slot slot, int64_t prompt_tokens, int64_t output_tokens) {
    clients_[static_cast<size_t>(slot)].served +=
        prompt_tokens + kOutputTokenWeight * output_tokens;
  }
  // The client whose request goes first: of those that wait, with the smallest counter. nullopt:
  // none waits.
  std::optional<Slot> First() const;
  int64_t served(Slot slot) const { return clients_[static_cast<size_t>(slot)].served; }

 private:
  struct Client {
    int64_t served = 0;
    int requests = 0;
    int waiting = 0;
    std::map<std::string, Slot>::iterator name;
  };
  void ForgetOne();

  std::map<std::string, Slot> slots_;
  std::vector<Client> clients_;
  std::vector<Slot> free_;
  int idle_ = 0;       // clients without requests
  int64_t floor_ = 0;  // the last smallest counter of those that waited
};

}  // namespace millrace::sched
