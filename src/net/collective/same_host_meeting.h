// How the ranks of a same-host collective find each other: rank 0 listens on an abstract unix
// socket; the others identify themselves and receive a file descriptor when all have joined. Each
// rank calls it from one thread.
//
// The name of the socket is a hash of `meeting`. Because socket names are public, a connecting rank
// proves with another hash that it knows `meeting`. Both sides must belong to one user.
#pragma once

#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "net/collective/same_host_collective.h"

namespace millrace::net {

struct Peer {
  int rank = 0;
  UniqueFd socket;
};

// Rank 0: waits for the others and passes `memory` to each.
Result<std::vector<Peer>> GatherRanks(const SameHostOptions& options, int memory);

struct Invitation {
  UniqueFd memory;
  Peer rank_zero;
};
// Any other rank.
Result<Invitation> MeetRankZero(const SameHostOptions& options);

}  // namespace millrace::net
