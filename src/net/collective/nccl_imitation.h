// For tests: the few functions of NCCL and CUDA that nccl_collective.cc calls, in host memory, for
// ranks that are threads. Linked instead of the libraries.
#pragma once

#include <atomic>

struct CUstream_st;

namespace millrace::net {

// Returns a stream that executes its work when it is queried. It is never freed.
CUstream_st* NewImitatedStream();

struct NcclImitation {
  inline static std::atomic<bool> stalls = false;  // no device makes progress
  inline static std::atomic<bool> breaks = false;  // every communicator has an error
  inline static std::atomic<int> communicators = 0;
  inline static std::atomic<int> ranks_most = 0;  // the most ranks of one sum
};

}  // namespace millrace::net
