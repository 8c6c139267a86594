// The kernels of a product: a register tile of R rows times one panel. Included once per target.
#if defined(MILLRACE_TENSOR_CPU_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_MULTIPLY_INL_H_
#undef MILLRACE_TENSOR_CPU_MULTIPLY_INL_H_
#else
#define MILLRACE_TENSOR_CPU_MULTIPLY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tensor/cpu/packs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {

// A tile of R x 32 sums needs 2 R registers at 16 lanes; narrower vectors compute it in slices. In
// blocks it is R x 16 outputs with a sum over the even k and one over the odd.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kTileRows = 14;
#elif HWY_TARGET == HWY_NEON
inline constexpr int kTileRows = 10;
#else
inline constexpr int kTileRows = 6;
#endif

// What a kernel does besides the arithmetic. It prefetches into L2 at the pace of the arithmetic:
// kStream its own panel some way ahead; kFetch and kWiden a part of what comes next. kWiden also
// stores b widened for other tiles.
enum class Mode { kPlain, kStream, kFetch, kWiden };

struct KernelArgs {
  const float* a;      // [k][R]
  PackPlace b;         // [k] packs
  int k;               // a multiple of the packs' unit
  const float* carry;  // [R][32]: sums so far; null: zeros
  float* out;          // [R][32]: carry + sum over k of a[k][R] b[k][32]
  const uint8_t* ahead;
  size_t ahead_step;  // bytes prefetched per k
  float* wide;        // [k][32]: in the layout of WidePairs or PlainPacks<StoredF32>
};
using Kernel = void (*)(const KernelArgs& args);

// Prefetches what belongs to one k; in blocks, to one pair of k of one unit, which has as many
// bytes.
template <class Packs, Mode kMode>
HWY_INLINE void Fetch(const KernelArgs& args, const uint8_t*& ahead) {
  if constexpr (kMode != Mode::kPlain) {
    constexpr size_t kBytes = kMode == Mode::kStream ? Packs::kBytes : 1;
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    ahead += args.ahead_step;
  }
}

template <class Packs, int R, Mode kMode>
void MultiplyInOrder(const KernelArgs& args) {
  const DF d;
  for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
    VF low[R], high[R];
    for (int r = 0; r < R; ++r) {
      const size_t at = r * kPack + j;
      low[r] = args.carry == nullptr ? hn::Zero(d) : hn::LoadU(d, args.carry + at);
      high[r] = args.carry == nullptr ? hn::Zero(d) : hn::LoadU(d, args.carry + at + kHalfPack);
    }
    const float* HWY_RESTRICT a = args.a;
    Packs b(args.b, j);
    const uint8_t* ahead = args.ahead;
    float* HWY_RESTRICT wide = args.wide;
    for (int k = 0; k < args.k; ++k) {
      VF b_low, b_high;
      b.Load(d, b_low, b_high);
      Fetch<Packs, kMode>(args, ahead);
      if constexpr (kMode == Mode::kWiden) {
        hn::StoreU(b_low, d, wide + j);
        hn::StoreU(b_high, d, wide + kHalfPack + j);
        wide += kPack;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const VF x = hn::Set(d, a[r]);
        low[r] = hn::MulAdd(b_low, x, low[r]);
        high[r] = hn::MulAdd(b_high, x, high[r]);
      }
      a += R;
    }
    for (int r = 0; r < R; ++r) {
      hn::StoreU(low[r], d, args.out + r * kPack + j);
      hn::StoreU(high[r], d, args.out + r * kPack + kHalfPack + j);
    }
  }
}

// One unit of a block, lanes [j, j + lanes): 16 outputs times 32 k. `b` is moved past it.
template <class Pairs, int R, Mode kMode>
HWY_INLINE void MultiplyUnit(const KernelArgs& args, const float* HWY_RESTRICT a, size_t j,
                             const float* carry, float* out, float* HWY_RESTRICT wide,
                             const uint8_t* ahead, Pairs& b) {
  const DF d;
  VF even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = hn::Zero(d);
  for (int i = 0; i < kUnitPairs; i += kPairGroup) {
#pragma GCC unroll 4
    for (int g = 0; g < kPairGroup; ++g) {
      VF w_even, w_odd;
      b.Load(d, g, w_even, w_odd);
      Fetch<Pairs, kMode>(args, ahead);
      if constexpr (kMode == Mode::kWiden) {
        hn::StoreU(w_even, d, wide + j);
        hn::StoreU(w_odd, d, wide + kHalfPack + j);
        wide += kPack;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) even[r] = hn::MulAdd(w_even, hn::Set(d, a[r]), even[r]);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) odd[r] = hn::MulAdd(w_odd, hn::Set(d, a[R + r]), odd[r]);
      a += 2 * R;
    }
    b.NextGroup();
  }
  for (int r = 0; r < R; ++r) {
    const size_t at = r * kPack + j;
    const VF before = carry == nullptr ? hn::Zero(d) : hn::LoadU(d, carry + at);
    hn::StoreU(hn::Add(before, hn::Add(even[r], odd[r])), d, out + at);
  }
}

// The same in blocks: args.k is a multiple of kBlockK.
template <class Pairs, int R, Mode kMode>
void MultiplyInBlocks(const KernelArgs& args) {
  if (args.k == 0) std::fill_n(args.out, R * kPack, 0.0f);  // a chain without k
  const DF d;
  Pairs b(args.b);
  const uint8_t* ahead = args.ahead;
  const float* carry = args.carry;
  for (int k = 0; k < args.k; k += kBlockK, carry = args.out) {
    const float* a = args.a + static_cast<size_t>(k) * R;
    for (size_t half = 0; half < kPack; half += kHalfPack) {
      float* wide = nullptr;
      if constexpr (kMode == Mode::kWiden) wide = args.wide + k * kPack + half * kBlockK;
      Pairs next = b;
      for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
        next = b;
        next.SetLane(j);
        MultiplyUnit<Pairs, R, kMode>(args, a, j, carry == nullptr ? nullptr : carry + half,
                                      args.out + half, wide, ahead, next);
      }
      b = next;
      ahead += args.ahead_step * kUnitPairs;
    }
  }
}

template <class Packs, Mode kMode, int... R>
constexpr std::array<Kernel, sizeof...(R)> MakeKernels(std::integer_sequence<int, R...>) {
  if constexpr (Packs::kInBlocks) {
    return {&MultiplyInBlocks<Packs, R + 1, kMode>...};
  } else {
    return {&MultiplyInOrder<Packs, R + 1, kMode>...};
  }
}

// The kernel for a tile of `rows`.
template <class Packs, Mode kMode>
Kernel KernelFor(int rows) {
  static constexpr auto kKernels =
      MakeKernels<Packs, kMode>(std::make_integer_sequence<int, kTileRows>());
  return kKernels[rows - 1];
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
