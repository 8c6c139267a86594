// Scratch: memory that kernels use during one operation. It is reused by the next one and grows
// when a larger one needs it, so the steady state allocates nothing. One user at a time; each
// thread of the pool has its own part.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/cpu/memory.h"

namespace millrace::tensor {

class Scratch {
 public:
  explicit Scratch(int threads) : per_thread_(threads) {}

  // Growing discards the content.
  float* Shared(size_t floats) { return Grow(shared_, floats); }

  void ReservePerThread(size_t floats) {
    for (HostMemory& memory : per_thread_) Grow(memory, floats);
  }
  float* OfThread(int thread) const { return static_cast<float*>(per_thread_[thread].data()); }

 private:
  // A few megabytes, bounded by the model's shape. Without them no step can run.
  static float* Grow(HostMemory& memory, size_t floats) {
    if (memory.bytes() < floats * sizeof(float)) {
      memory = HostMemory();
      Result<HostMemory> grown = HostMemory::Allocate(floats * sizeof(float), "a kernel's scratch");
      MR_CHECK(grown.ok()) << grown.status().message();
      memory = std::move(grown).value();
    }
    return static_cast<float*>(memory.data());
  }

  HostMemory shared_;
  std::vector<HostMemory> per_thread_;
};

}  // namespace millrace::tensor
