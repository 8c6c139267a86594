// Packs: 32 stored numbers that become two f32 vectors' worth of lanes. Included once per target.
//
// Values j and j + 16 of a pack are loaded together, N at a time. bf16 packs hold the two in one
// 32-bit word, low half first, so that a shift and a mask widen them; f32 and f16 packs are in
// natural order. Lanes are at most 16, so the order in memory is the same on every target.
#if defined(MILLRACE_TENSOR_CPU_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_WIDEN_INL_H_
#undef MILLRACE_TENSOR_CPU_WIDEN_INL_H_
#else
#define MILLRACE_TENSOR_CPU_WIDEN_INL_H_
#endif

#include <hwy/highway.h>

#include "core/model_spec.h"
#include "tensor/cpu/float16.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;

inline constexpr size_t kPack = 32;
inline constexpr size_t kHalfPack = 16;

// FactorOf of each number (float16.h).
HWY_INLINE VF FactorOf(VF x) {
  const DF d;
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), hn::Set(d, kSmallestFactor)), x);
}

struct StoredF32 {
  using T = float;
  static constexpr DType kDType = DType::kF32;
  static HWY_INLINE void Load(DF d, const T* pack, size_t j, VF& low, VF& high) {
    low = hn::LoadU(d, pack + j);
    high = hn::LoadU(d, pack + kHalfPack + j);
  }
  static HWY_INLINE void Store(DF d, VF low, VF high, T* pack, size_t j) {
    hn::StoreU(low, d, pack + j);
    hn::StoreU(high, d, pack + kHalfPack + j);
  }
  static constexpr size_t Index(size_t j) { return j; }
  static T Narrow(float x) { return x; }
};

struct StoredBF16 {
  using T = uint16_t;
  static constexpr DType kDType = DType::kBF16;
  static HWY_INLINE void Load(DF d, const T* pack, size_t j, VF& low, VF& high) {
    const DU du;
    const auto words = hn::LoadU(du, reinterpret_cast<const uint32_t*>(pack) + j);
    low = hn::BitCast(d, hn::ShiftLeft<16>(words));
    high = hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000u)));
  }
  static HWY_INLINE void Store(DF, VF low, VF high, T* pack, size_t j) {
    const DU du;
    hn::StoreU(hn::Or(hn::ShiftRight<16>(Rounded(low)), Rounded(high)), du,
               reinterpret_cast<uint32_t*>(pack) + j);
  }
  // One vector, its numbers side by side.
  static HWY_INLINE void StoreHalf(DF, VF x, T* to) {
    const hn::Rebind<T, DF> dh;
    hn::StoreU(hn::TruncateTo(dh, hn::ShiftRight<16>(Rounded(x))), dh, to);
  }
  // The index of value j in a pack.
  static constexpr size_t Index(size_t j) {
    return j < kHalfPack ? 2 * j : 2 * (j - kHalfPack) + 1;
  }
  static T Narrow(float x) { return BF16FactorOf(x); }

  // Factors, rounded to nearest even: the bf16 is in the upper half of each word, zeros in the
  // lower.
  static HWY_INLINE hn::Vec<DU> Rounded(VF x) {
    const DF d;
    const DU du;
    const auto bits = hn::BitCast(du, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
    const auto word = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
    const auto small = hn::Lt(hn::Abs(x), hn::Set(d, kSmallestFactor));
    return hn::IfThenZeroElse(hn::RebindMask(du, small), hn::And(word, hn::Set(du, 0xffff0000u)));
  }
};

// to[i] = x[i], a factor, rounded to bf16.
inline void RoundNumbers(const float* x, size_t count, uint16_t* to) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) StoredBF16::StoreHalf(d, hn::LoadU(d, x + i), to + i);
  for (; i < count; ++i) to[i] = BF16FactorOf(x[i]);
}

struct StoredF16 {
  using T = uint16_t;
  static constexpr DType kDType = DType::kF16;
  using DH = hn::Rebind<hwy::float16_t, DF>;
  static HWY_INLINE VF LoadHalf(DF d, const T* from) {
    const DH dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void Load(DF d, const T* pack, size_t j, VF& low, VF& high) {
    low = LoadHalf(d, pack + j);
    high = LoadHalf(d, pack + kHalfPack + j);
  }
  static HWY_INLINE void StoreHalf(DF d, VF x, T* to) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
    const DH dh;
    static_cast<void>(d);
    hn::StoreU(hn::DemoteTo(dh, x), dh, reinterpret_cast<hwy::float16_t*>(to));
#else  // Highway's emulation truncates
    HWY_ALIGN float lanes[hn::MaxLanes(DF())];
    hn::Store(x, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = F16FromFloat(lanes[i]);
#endif
  }
  static HWY_INLINE void Store(DF d, VF low, VF high, T* pack, size_t j) {
    StoreHalf(d, low, pack + j);
    StoreHalf(d, high, pack + kHalfPack + j);
  }
  static constexpr size_t Index(size_t j) { return j; }
  static T Narrow(float x) { return F16FromFloat(x); }
};

// Calls visitor(Stored...()) for the storage type that `dtype` names.
template <typename Visitor>
HWY_INLINE void WithStored(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF32: return visitor(StoredF32());
    case DType::kBF16: return visitor(StoredBF16());
    case DType::kF16: return visitor(StoredF16());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
