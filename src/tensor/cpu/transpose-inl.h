// Transposes small matrices of 32-bit numbers. Included once per target.
#if defined(MILLRACE_TENSOR_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_TRANSPOSE_INL_H_
#undef MILLRACE_TENSOR_CPU_TRANSPOSE_INL_H_
#else
#define MILLRACE_TENSOR_CPU_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Writes columns [0, n) of `count` rows to to[i][height], 4 x 4 at a time where that fits.
template <typename T>
void Transpose(const T* from, size_t stride, int count, int n, T* to, size_t height) {
  int r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<T, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  for (; r + 4 <= count; r += 4) {
    const T* rows = from + r * stride;
    int i = 0;
    for (; i + 4 <= n; i += 4) {
      const auto a = hn::LoadU(d, rows + i), b = hn::LoadU(d, rows + stride + i);
      const auto c = hn::LoadU(d, rows + 2 * stride + i), e = hn::LoadU(d, rows + 3 * stride + i);
      const auto ab0 = hn::BitCast(dw, hn::InterleaveLower(d, a, b));  // a0 b0 a1 b1
      const auto ce0 = hn::BitCast(dw, hn::InterleaveLower(d, c, e));
      const auto ab1 = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));  // a2 b2 a3 b3
      const auto ce1 = hn::BitCast(dw, hn::InterleaveUpper(d, c, e));
      T* at = to + i * height + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab0, ce0)), d, at);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab0, ce0)), d, at + height);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab1, ce1)), d, at + 2 * height);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab1, ce1)), d, at + 3 * height);
    }
    for (; i < n; ++i) {
      for (int j = 0; j < 4; ++j) to[i * height + r + j] = rows[j * stride + i];
    }
  }
#endif
  for (; r < count; ++r) {
    for (int i = 0; i < n; ++i) to[i * height + r] = from[r * stride + i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
