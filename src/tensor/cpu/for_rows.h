// Checks rows, and divides them over a device's threads. The device's thread only.
#pragma once

#include "tensor/cpu/memory.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline void CheckF32(const Rows& x) { MR_CHECK(x.type == DType::kF32) << DTypeName(x.type); }
inline void CheckSameShape(const Rows& a, const Rows& b) {
  MR_CHECK(a.rows == b.rows && a.cols == b.cols)
      << "[" << a.rows << ", " << a.cols << "] and [" << b.rows << ", " << b.cols << "]";
  CheckF32(a);
  CheckF32(b);
}

// Whether rows are so many numbers that several threads are worth waking.
inline bool IsWorthDividing(const Rows& x) {
  constexpr int kMinNumbers = 16384;
  return SaturatingProduct(x.rows, x.cols) >= kMinNumbers;
}

// task(first row, rows), on several threads when there is enough work.
template <typename Task>
void ForRows(ThreadPool& pool, const Rows& x, Task task) {
  if (x.rows == 0) return;
  const int pieces = 4 * pool.threads();
  const int piece = IsWorthDividing(x) ? (x.rows + pieces - 1) / pieces : x.rows;
  pool.ParallelFor(x.rows, piece, [&](int begin, int end, int) { task(begin, end - begin); });
}

}  // namespace millrace::tensor
