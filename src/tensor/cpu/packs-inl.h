// Iterates over the packs of a panel, widened, in either format of the panel. Included once per
// target.
#if defined(MILLRACE_TENSOR_CPU_PACKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_PACKS_INL_H_
#undef MILLRACE_TENSOR_CPU_PACKS_INL_H_
#else
#define MILLRACE_TENSOR_CPU_PACKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "tensor/cpu/packed_matrix.h"
#include "tensor/cpu/short_bf16.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The position in a panel from which packs are read.
struct PackPlace {
  const uint8_t* b = nullptr;  // the first one, or its group
  // Short bf16 only: the panel's bases, and its remaining groups that are kept aside.
  const uint32_t* bases = nullptr;
  const uint32_t* aside = nullptr;
  const uint32_t* aside_words = nullptr;
  uint32_t group = 0;
};

// f32 and f16: a k at a time, lanes [j, j + lanes) of both halves.
template <class Stored>
class PlainPacks {
 public:
  static constexpr bool kIsWide = Stored::kDType == DType::kF32;
  static constexpr bool kInBlocks = false;
  static constexpr size_t kBytes = kPack * sizeof(typename Stored::T);  // of a pack
  using Wide = PlainPacks<StoredF32>;

  static PackPlace At(const CpuPackedMatrix& w, int panel, int k) {
    return {.b = w.panel(panel) + static_cast<size_t>(k) * kBytes};
  }

  PlainPacks(const PackPlace& place, size_t j)
      : b_(reinterpret_cast<const typename Stored::T*>(place.b)), j_(j) {}
  // The next pack.
  HWY_INLINE void Load(DF d, VF& low, VF& high) {
    Stored::Load(d, b_, j_, low, high);
    b_ += kPack;
  }

 private:
  const typename Stored::T* HWY_RESTRICT b_;
  size_t j_;
};

// In blocks: pairs of k, unit after unit (packed_matrix.h), lanes [j, j + lanes) of their 16
// outputs. Pair `g` of the current group of kPairGroup; NextGroup moves on.
inline constexpr int kPairGroup = kShortGroup;

// Widened: [pair][even, odd][16 outputs].
class WidePairs {
 public:
  static constexpr bool kIsWide = true;
  static constexpr bool kInBlocks = true;
  static constexpr size_t kBytes = kPack * sizeof(float);  // of a pair

  explicit WidePairs(const PackPlace& place) : b_(reinterpret_cast<const float*>(place.b)) {}
  HWY_INLINE void SetLane(size_t j) { j_ = j; }
  HWY_INLINE void Load(DF d, int g, VF& even, VF& odd) const {
    StoredF32::Load(d, b_ + static_cast<size_t>(g) * kPack, j_, even, odd);
  }
  HWY_INLINE void NextGroup() { b_ += kPairGroup * kPack; }

 private:
  const float* HWY_RESTRICT b_;
  size_t j_ = 0;
};

class BF16Pairs {
 public:
  static constexpr bool kIsWide = false;
  static constexpr bool kInBlocks = true;
  static constexpr size_t kBytes = kHalfPack * sizeof(uint32_t);  // of a pair
  using Wide = WidePairs;

  static PackPlace At(const CpuPackedMatrix& w, int panel, int k) {
    return {.b = w.panel(panel) + static_cast<size_t>(k) * kBytes};
  }

  explicit BF16Pairs(const PackPlace& place) : words_(reinterpret_cast<const uint16_t*>(place.b)) {}
  HWY_INLINE void SetLane(size_t j) { j_ = j; }
  HWY_INLINE void Load(DF d, int g, VF& even, VF& odd) const {
    StoredBF16::Load(d, words_ + static_cast<size_t>(g) * kPack, j_, even, odd);
  }
  HWY_INLINE void NextGroup() { words_ += kPairGroup * kPack; }

 private:
  const uint16_t* HWY_RESTRICT words_;
  size_t j_ = 0;
};

// Needs vectors of 16 lanes: it has no lanes to choose from.
class ShortPairs {
 public:
  static constexpr bool kIsWide = false;
  static constexpr bool kInBlocks = true;
  static constexpr size_t kBytes = kShortGroupWords * sizeof(uint32_t) / kShortGroup;
  using Wide = WidePairs;

  // REQUIRES: k is a multiple of kBlockK.
  static PackPlace At(const CpuPackedMatrix& w, int panel, int k) {
    const Asides asides = w.asides(panel);
    const auto group = static_cast<uint32_t>(k / kShortGroup);
    const auto next = std::lower_bound(asides.groups.begin(), asides.groups.end(), group);
    const auto skipped = static_cast<size_t>(next - asides.groups.begin());
    const uint8_t* bases = w.panel(panel);
    return {.b = bases + kShortBases * sizeof(uint32_t) + static_cast<size_t>(k) * kBytes,
            .bases = reinterpret_cast<const uint32_t*>(bases),
            .aside = asides.groups.data() + skipped,
            .aside_words = asides.words + skipped * kShortGroup * kHalfPack,
            .group = group};
  }

  explicit ShortPairs(const PackPlace& place)
      : words_(reinterpret_cast<const uint32_t*>(place.b)),
        bases_(place.bases),
        aside_(place.aside),
        aside_words_(place.aside_words),
        group_(place.group),
        is_aside_(*aside_ == group_) {}

  HWY_INLINE void SetLane(size_t) {}
  HWY_INLINE void Load(DF d, int g, VF& even, VF& odd) const {
    if (HWY_UNLIKELY(is_aside_)) {
      const uint32_t* words = aside_words_ + static_cast<size_t>(g) * kHalfPack;
      StoredBF16::Load(d, reinterpret_cast<const uint16_t*>(words), 0, even, odd);
      return;
    }
    const DU du;
    const auto pair = g < 3 ? hn::LoadU(du, words_ + static_cast<size_t>(g) * kHalfPack) : Last();
    const size_t half = group_ / (kUnitPairs / kShortGroup) % 2;
    const auto base = hn::LoadU(du, bases_ + half * kHalfPack);
    even = Widen(d, pair, base);
    odd = Widen(d, hn::ShiftLeft<12>(pair), base);
  }
  HWY_INLINE void NextGroup() {
    words_ += kShortGroupWords;
    ++group_;
    if (HWY_UNLIKELY(is_aside_)) {
      ++aside_;
      aside_words_ += kShortGroup * kHalfPack;
    }
    is_aside_ = *aside_ == group_;
  }

 private:
  // The fourth pair of numbers; each word holds one byte of it.
  HWY_INLINE hn::Vec<DU> Last() const {
    const DU du;
    const auto byte = hn::Set(du, 0xff);
    const auto top = hn::ShiftLeft<24>(hn::LoadU(du, words_));
    const auto middle = hn::ShiftLeft<16>(hn::And(hn::LoadU(du, words_ + kHalfPack), byte));
    const auto last = hn::ShiftLeft<8>(hn::And(hn::LoadU(du, words_ + 2 * kHalfPack), byte));
    return hn::Or3(top, middle, last);
  }
  // The number in the top 12 bits of each lane. An arithmetic shift puts exponent and mantissa in
  // place and fills the bits between sign and exponent with copies of the sign.
  static HWY_INLINE VF Widen(DF d, hn::Vec<DU> number, hn::Vec<DU> base) {
    const DU du;
    const hn::RebindToSigned<DF> di;
    const auto moved = hn::BitCast(du, hn::ShiftRight<4>(hn::BitCast(di, number)));
    const auto kept = hn::And(moved, hn::Set(du, 0x87ff0000u));
    return hn::BitCast(d, hn::Add(kept, base));
  }

  const uint32_t* HWY_RESTRICT words_;
  const uint32_t* bases_;
  const uint32_t* aside_;
  const uint32_t* aside_words_;
  uint32_t group_;
  bool is_aside_;
};

// Narrower vectors lose more on a batch of 16 by widening than one sequence gains by reading less.
inline constexpr bool kReadsShort = hn::MaxLanes(DF()) == kHalfPack;

// Calls visitor(std::type_identity<...Packs>()) for the packs of `format`.
template <typename Visitor>
HWY_INLINE void WithPacks(PanelFormat format, Visitor&& visitor) {
  switch (format) {
    case PanelFormat::kF32: return visitor(std::type_identity<PlainPacks<StoredF32>>());
    case PanelFormat::kBF16: return visitor(std::type_identity<BF16Pairs>());
    case PanelFormat::kF16: return visitor(std::type_identity<PlainPacks<StoredF16>>());
    case PanelFormat::kShortBF16:
      if constexpr (kReadsShort) return visitor(std::type_identity<ShortPairs>());
  }
  MR_CHECK(false) << "this instruction set does not read these packs";
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
