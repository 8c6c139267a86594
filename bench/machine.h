// Measured limits of this machine: the roofline to which benchmarks state their ratios. One thread.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::bench {

// Seconds since some moment. On a busy machine the calling thread's CPU time is more accurate than
// the wall clock if only the calling thread works.
enum class Clock { kWall, kCallerCpu };
double Now(Clock clock);

// Multiply-adds in registers, and reads of memory far larger than the caches, by several threads at
// once. Samples are short, so that a benchmark can take one next to each of its own.
class Machine {
 public:
  explicit Machine(Clock clock = Clock::kWall);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // f32, 2 operations per fused multiply-add and lane; GFLOP/s of all threads together.
  double SampleFmaGflops(int threads);
  // bf16 on AMX's tiles, in registers; 0 where there are none.
  double SampleTileGflops(int threads);
  // GB/s (10^9 bytes) of all threads together; each reads its own memory front to back.
  double SampleReadGbps(int threads);

  static constexpr int kMaxThreads = 64;
  static constexpr size_t kReadBytes = size_t{512} << 20;  // per thread

 private:
  struct State;
  // operations_of(): what one thread did.
  template <typename Task>
  double SampleGflops(int threads, Task operations_of);

  State* state_;
};

}  // namespace millrace::bench
