// FlushDenormals: while one lives, its thread takes denormal numbers as zeros and flushes results
// that are denormal to zero. AMX's products always do so, and every kernel computes alike.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::tensor {

#if defined(__x86_64__)
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) {
    if ((before_ & kBits) != kBits) _mm_setcsr(before_ | kBits);
  }
  ~FlushDenormals() {
    if ((before_ & kBits) != kBits) _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kBits = 0x8040;  // flush to zero, denormals are zeros
  const unsigned before_;
};
#else
class FlushDenormals {};
#endif

}  // namespace millrace::tensor
