// The collective of ranks that are processes of one host with a CUDA device each. The values are in
// that device's memory.
//
// NCCL moves and adds, but never in its own order: it only adds two ranks at a time, first 2r and
// 2r + 1, then two blocks of these, and so on. A sum of two does not depend on their order, so
// every rank gets the bits of pairwise_sum.h, which ncclAllReduce over all ranks does not
// guarantee.
//
// The ranks meet as in same_host_collective.h, and again before each sum. That detects a rank that
// is missing, gone or adds a different number of values before any rank waits on a device. While a
// device works, the deadline, the peers and NCCL's errors are checked. The ranks meet once more
// after the sum, so that no rank takes its device away from another's sum. Owned and used like any
// Collective.
//
// Compiled and linked with NCCL 2.32, and tested against an imitation of NCCL in host memory
// (nccl_collective_test.cc). It has NOT been run on CUDA devices, and no code creates it yet: there
// is no CUDA device in tensor/.
#pragma once

#include <memory>

#include "net/collective/same_host_collective.h"

struct CUstream_st;

namespace millrace::net {

struct NcclOptions {
  SameHostOptions group;
  int cuda_device = 0;            // used by no other rank
  CUstream_st* stream = nullptr;  // sums run after the work in it; outlives the collective
};

// Returns when all ranks have joined and their devices are connected. Errors of JoinSameHost;
// kUnavailable: NCCL or CUDA failed.
Result<std::unique_ptr<Collective>> JoinNccl(const NcclOptions& options);

}  // namespace millrace::net
