// KvHoldings: the KV of this worker that others may pull, as a state machine. The worker's body
// asks it before it serves a byte, and frees nothing of a lane while a pull reads from it.
//
//   Expose(0 tokens) -> computing --Expose--> held <--BeginPull/EndPull--> pulling
//                                              | Release, lease over        | the same, but the
//                                              v                            v last pull ends first
//                                      released | expired (told by TakeEnded, then forgotten)
//
// Only the owner's messages (Expose, Release, CloseLane) change what is held; a reader can but
// begin and end pulls, and needs the whole handle, whose nonce nobody can guess. Pure: the time
// comes in. One thread at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

enum class HoldingState : uint8_t { kComputing, kHeld, kPulling, kReleased, kExpired };

using KvTicket = StrongId<struct KvTicketTag>;

struct KvHoldingsLimits {
  size_t holdings = 8192;
  size_t blocks = size_t{1} << 22;  // of all holdings together
  size_t pulls_each = 64;           // under way from one holding
  size_t remembered = 4096;         // ended holdings, whose handles are known to be stale
};

struct KvHoldingsCounters {
  uint64_t exposed = 0, extended = 0, released = 0, expired = 0;
  uint64_t pulls_begun = 0, pulls_ended = 0;
  uint64_t unknown = 0;   // handles nobody ever exposed here, or long ago
  uint64_t forged = 0;    // right lane and generation, wrong nonce
  uint64_t stale = 0;     // pulls and releases of what has ended, or is about to
  uint64_t replayed = 0;  // exposed again after the end, or with less than before
  uint64_t refused = 0;   // beyond what is exposed, or beyond a limit
};

// What a pull may read, until EndPull.
struct KvLoan {
  KvTicket ticket;
  LaneId lane;
  std::shared_ptr<const std::vector<BlockIndex>> blocks;  // the whole table, from token 0
};

struct EndedHolding {
  KvHandle handle;
  HoldingState how = HoldingState::kReleased;
};

class KvHoldings {
 public:
  explicit KvHoldings(const KvHoldingsLimits& limits = {}) : limits_(limits) {}

  // New, or more of what is held (the same blocks and further ones); the lease runs from now.
  // kInvalidArgument: the blocks do not hold so many tokens. kFailedPrecondition: it has ended, or
  // was exposed with more or with other blocks. kResourceExhausted: a limit.
  Status Expose(const ExposeKv& message, int block_size, Time now);
  // Ends when the last pull from it does. Unknown, wrong and stale handles are counted.
  void Release(const KvHandle& handle);
  // Releases all that the lane holds. The body closes the lane when Reading() is false.
  void CloseLane(LaneId lane);

  // kNotFound: unknown, wrong or stale handle (which of them is not told). kUnavailable: those
  // tokens are not exposed yet. kResourceExhausted: too many pulls at once.
  Result<KvLoan> BeginPull(const KvHandle& handle, int first_token, int end_token, Time now);
  // Unknown tickets are ignored.
  void EndPull(KvTicket ticket);

  // Ends the leases that are over; those that are pulled from end with their last pull.
  void Sweep(Time now);
  std::optional<Time> NextExpiry() const;
  // Appends what has ended since the last call, oldest first. Its blocks may be reused.
  void TakeEnded(std::vector<EndedHolding>& ended);

  std::optional<HoldingState> StateOf(const KvHandle& handle) const;
  bool Reading(LaneId lane) const;
  size_t size() const { return holdings_.size(); }
  const KvHoldingsCounters& counters() const { return counters_; }
  // Every count right; crashes with the reason when not.
  void CheckIntegrity() const;

 private:
  struct Name {
    LaneId lane;
    uint64_t generation = 0;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct Holding {
    KvHandle handle;
    std::shared_ptr<const std::vector<BlockIndex>> blocks;
    int tokens = 0;
    Time until;
    size_t pulls = 0;
    std::optional<HoldingState> ending = {};  // as soon as nobody pulls
  };
  using Map = std::map<Name, Holding>;

  static Name NameOf(const KvHandle& handle) { return {handle.lane, handle.generation}; }
  Status Extend(Holding& holding, const ExposeKv& message, Time now);
  Holding* FindRight(const KvHandle& handle);
  bool HasEnded(const Name& name) const;
  // Returns what follows.
  Map::iterator Finish(Map::iterator holding, HoldingState how);

  const KvHoldingsLimits limits_;
  Map holdings_;
  std::map<KvTicket, Name> pulls_;
  std::deque<Name> ended_names_;
  std::vector<EndedHolding> ended_;
  size_t blocks_ = 0;
  uint64_t next_ticket_ = 1;
  KvHoldingsCounters counters_;
};

// Takes the same time wherever they differ.
bool SameNonce(const KvHandle& a, const KvHandle& b);

}  // namespace millrace::cluster
