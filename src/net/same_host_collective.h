// The collective of ranks that are processes of one host and user.
//
// Rank 0 makes the shared memory (a memfd, sealed so that nobody can cut it) and hands it to the
// others over a unix socket with an abstract name: there is no file that could stay behind. The
// connections stay open, so that the kernel says when a process dies: rank 0 watches all, the
// others watch rank 0, and who notices ends the group.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/slot_collective.h"

namespace millrace::net {

struct SameHostOptions {
  int rank = 0, size = 1;
  // Where the ranks meet: the same string for all of them, unguessable, of one group for ever.
  std::string meeting;
  uint64_t incarnation = 0;  // of the group; a rank of another one is turned away
  Duration join_within = Duration::Seconds(30);
  std::function<bool()> wanted;  // asked while it waits for others; false: kCancelled. May be empty
  Duration deadline = kCollectiveDeadline;  // of each call
  size_t slot_floats = kSlotFloats;         // the same for all
};

// Returns when all ranks have come. kUnavailable: they did not within `join_within`, with who is
// missing; kFailedPrecondition: the group turned this rank away (stale, twice there, another size);
// kResourceExhausted: no memory.
Result<std::unique_ptr<SlotCollective>> JoinSameHost(const SameHostOptions& options);

}  // namespace millrace::net
