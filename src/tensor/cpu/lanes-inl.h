// Reductions over 16 virtual lanes: the same additions in the same order whatever the length of a
// vector. One vector of AVX-512 has all 16 lanes, AVX2 takes two vectors, NEON and SSE4 four. With
// fused multiply-adds, a reduction therefore has the same bits on all of them. Included once per
// target.
#if defined(MILLRACE_TENSOR_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_LANES_INL_H_
#undef MILLRACE_TENSOR_CPU_LANES_INL_H_
#else
#define MILLRACE_TENSOR_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kVirtualLanes = 16;
inline constexpr size_t kLaneVectors = kVirtualLanes / hn::MaxLanes(DF());

// Folds the upper half of a vector onto the lower until one lane is left.
template <class D, class Fold>
HWY_INLINE float FoldLanes(D, hn::Vec<D> v, Fold fold) {
#if HWY_TARGET != HWY_SCALAR  // which has one lane and no UpperHalf
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return FoldLanes(half, fold(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), fold);
  }
#endif
  static_cast<void>(fold);
  return hn::GetLane(v);
}

// Sixteen running values. Lane i + 8 is folded onto lane i, then i + 4, i + 2 and i + 1.
struct Lanes {
  VF vectors[kLaneVectors];

  static HWY_INLINE Lanes Of(float x) {
    Lanes lanes;
    for (VF& v : lanes.vectors) v = hn::Set(DF(), x);
    return lanes;
  }
  // fold(a, b): one of two vectors of any length.
  template <class Fold>
  HWY_INLINE float Reduce(Fold fold) const {
    VF left[kLaneVectors];
    for (size_t v = 0; v < kLaneVectors; ++v) left[v] = vectors[v];
    for (size_t n = kLaneVectors / 2; n > 0; n /= 2) {
      for (size_t v = 0; v < n; ++v) left[v] = fold(left[v], left[v + n]);
    }
    return FoldLanes(DF(), left[0], fold);
  }
  HWY_INLINE float Sum() const {
    return Reduce([](auto a, auto b) { return hn::Add(a, b); });
  }
  HWY_INLINE float Max() const {
    return Reduce([](auto a, auto b) { return hn::Max(a, b); });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
