// How the ranks of a same-host collective find each other: rank 0 listens on an abstract unix
// socket; the others identify themselves and receive a file descriptor when all have joined. Each
// rank calls it from one thread.
//
// The name of the socket is a hash of `meeting`. Because socket names are public, a connecting rank
// proves with another hash that it knows `meeting`. Both sides must belong to one user.
#pragma once

#include <vector>

#include "base/status.h"
#include "net/collective/same_host_collective.h"

namespace millrace::net {

// A file descriptor, closed by the destructor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct Peer {
  int rank = 0;
  Fd socket;
};

// Rank 0: waits for the others and passes `memory` to each.
Result<std::vector<Peer>> GatherRanks(const SameHostOptions& options, int memory);

struct Invitation {
  Fd memory;
  Peer rank_zero;
};
// Any other rank.
Result<Invitation> MeetRankZero(const SameHostOptions& options);

}  // namespace millrace::net
