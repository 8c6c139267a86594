// The collective of ranks that are processes of one host with a CUDA device each. The values lie in
// that device's memory.
//
// NCCL moves and adds, but never in an order of its own: it only ever adds two ranks, first 2r and
// 2r + 1, then those two blocks further on, and so on. A sum of two is the same whoever is first,
// so every rank gets the bits of pairwise_sum.h, which ncclAllReduce of all ranks does not promise.
//
// The ranks meet as same_host_collective.h has them meet, and again before each sum: there a rank
// that is missing, gone or adds another number of values is noticed, before anything waits on a
// device. While a device works, deadline, peers and NCCL's own errors are looked at. And once more
// after it, so that nobody takes its device away from another's sum.
//
// Compiled and linked with NCCL 2.32, and tested against an imitation of NCCL in host memory
// (nccl_collective_test.cc). It has NOT been run on CUDA devices, and nothing makes it yet: there
// is no CUDA device in tensor/.
#pragma once

#include <memory>

#include "net/same_host_collective.h"

struct CUstream_st;

namespace millrace::net {

struct NcclOptions {
  SameHostOptions group;
  int cuda_device = 0;            // no other rank's
  CUstream_st* stream = nullptr;  // sums come after what is in it; outlives the collective
};

// Returns when all ranks have come and their devices are connected. Errors of JoinSameHost;
// kUnavailable: NCCL or CUDA cannot.
Result<std::unique_ptr<Collective>> JoinNccl(const NcclOptions& options);

}  // namespace millrace::net
