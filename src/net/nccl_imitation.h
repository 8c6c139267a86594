// For tests: the few functions of NCCL and CUDA that nccl_collective.cc calls, in host memory, for
// ranks that are threads. Linked instead of the libraries.
#pragma once

#include <atomic>

struct CUstream_st;

namespace millrace::net {

// A stream that does what is in it when it is asked how far it is. Lives for ever.
CUstream_st* NewImitatedStream();

struct NcclImitation {
  inline static std::atomic<bool> stalls = false;  // no device gets anywhere
  inline static std::atomic<bool> breaks = false;  // every communicator has an error
  inline static std::atomic<int> communicators = 0;
  inline static std::atomic<int> ranks_most = 0;  // of one sum
};

}  // namespace millrace::net
