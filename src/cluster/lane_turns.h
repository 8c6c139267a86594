// Which lanes may form steps now. The ranks of a group wait for each other within every batch, and
// a worker runs one batch at a time. While a plan changes, a worker has a place in the groups of
// two layouts, and could wait in one for somebody who waits for it in the other: lanes whose groups
// share workers without being the same group have steps in flight by turns. Within one layout no
// worker has two places, so that all this is asleep but for changes.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/worker_messages.h"

namespace millrace::cluster {

class LaneTurns {
 public:
  // `workers`: by hop and rank. REQUIRES: the lane is new.
  void Open(LaneId lane, const std::vector<std::vector<WorkerId>>& workers);

  // False: it is another's turn. The lane waits in line from now on.
  bool MayStep(LaneId lane);

  // What ends a turn adds to `ask_again` the waiting lanes whose turn it may be now.
  void Close(LaneId lane, std::set<LaneId>& ask_again);
  // It had its turn and formed what it could. `in_flight`: it has steps that have not ended.
  void Stepped(LaneId lane, bool in_flight, std::set<LaneId>& ask_again);
  // The last of its steps has ended.
  void Idle(LaneId lane, std::set<LaneId>& ask_again);

 private:
  struct Lane {
    std::vector<std::vector<WorkerId>> groups;  // of more than one rank
    std::set<LaneId> entangled;
    bool in_flight = false;
    std::optional<uint64_t> waits_since;
  };
  static bool Entangled(const Lane& a, const Lane& b);

  std::map<LaneId, Lane> lanes_;
  size_t entangled_lanes_ = 0;
  uint64_t waits_ = 0;  // begun so far
};

}  // namespace millrace::cluster
