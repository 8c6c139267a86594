// The collective of ranks that are processes of one host and user.
//
// Rank 0 creates the shared memory (a memfd, sealed so that it cannot be truncated) and passes it
// to the others over a unix socket with an abstract name, so no file can be left behind. The
// connections stay open, so that the kernel reports the death of a process: rank 0 watches all, the
// others watch rank 0, and the first to notice ends the group. Owned and used like any Collective.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/collective/slot_collective.h"

namespace millrace::net {

struct SameHostOptions {
  int rank = 0, size = 1;
  // The name under which the ranks meet: the same string for all of them, unguessable, never
  // reused.
  std::string meeting;
  uint64_t incarnation = 0;  // of the group; a rank with another one is refused
  Duration join_within = Duration::Seconds(30);
  // Called while this rank waits for others; false ends the wait with kCancelled. May be empty.
  std::function<bool()> wanted;
  Duration deadline = kCollectiveDeadline;  // of each call
  size_t slot_floats = kSlotFloats;         // the same for all
};

// Returns when all ranks have joined. kUnavailable: some ranks did not join within `join_within`;
// the message names them. kFailedPrecondition: the group refused this rank (stale, duplicate,
// another size). kResourceExhausted: out of memory.
Result<std::unique_ptr<Collective>> JoinSameHost(const SameHostOptions& options);

}  // namespace millrace::net
