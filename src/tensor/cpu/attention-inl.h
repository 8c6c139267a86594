// The two inner products of attention over pages of a CpuKvPool. Included once per target.
#if defined(MILLRACE_TENSOR_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_ATTENTION_INL_H_
#undef MILLRACE_TENSOR_CPU_ATTENTION_INL_H_
#else
#define MILLRACE_TENSOR_CPU_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tensor/cpu/attention.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries whose sums fit in registers together; 2 vectors for each.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kStripQueries = 8;
#else
constexpr int kStripQueries = 4;
#endif

// Keys or values of a partition, found block by block.
template <class Stored>
class Pages {
 public:
  using T = typename Stored::T;
  explicit Pages(const AttentionTile& tile)
      : tile_(tile),
        block_size_(tile.pool->shape().block_size),
        run_numbers_((tile.pool->shape().head_dim + 1) / 2 * kPack),
        token_numbers_(tile.pool->value_dim()) {}

  // The run of 16 keys from `key`, a multiple of 16.
  const T* Keys(int key) const {
    const uint8_t* base =
        tile_.pool->keys(tile_.layer, tile_.blocks[key / block_size_], tile_.kv_head);
    return reinterpret_cast<const T*>(base) + key % block_size_ / kKeyRun * run_numbers_;
  }
  const T* Values(int key) const {
    const uint8_t* base =
        tile_.pool->values(tile_.layer, tile_.blocks[key / block_size_], tile_.kv_head);
    return reinterpret_cast<const T*>(base) + key % block_size_ * token_numbers_;
  }
  // The keys of a later partition, to be prefetched along with this value; `value` if there are
  // none.
  const T* KeysAfter(int key, const T* value) const {
    const int later = key + kPartitionKeys;
    if (static_cast<size_t>(later / block_size_) >= tile_.blocks.size()) return value;
    return Keys(later / kKeyRun * kKeyRun) + key % kKeyRun * token_numbers_;
  }
  // The number of keys from `key` on whose values are contiguous.
  int Contiguous(int key) const { return block_size_ - key % block_size_; }

 private:
  const AttentionTile& tile_;
  const int block_size_;
  const size_t run_numbers_, token_numbers_;
};

// Prefetches into L2 what the next product reads, while this one computes.
template <typename T>
HWY_INLINE void FetchPack(const T* pack) {
  for (size_t i = 0; i < kPack; i += 64 / sizeof(T)) __builtin_prefetch(pack + i, 0, 2);
}

// scores[R][kPartitionKeys] of two runs of 16 keys.
template <class Stored>
struct ScoreArgs {
  const float* q;  // [2 * pairs][R]
  int pairs;       // of dimensions
  const typename Stored::T* runs[2];
  const typename Stored::T* ahead[2];  // the values of the same tokens
  float* scores;
};

template <class Stored, int R>
void ScoreRuns(const ScoreArgs<Stored>& args) {
  const DF d;
  for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
    VF sums0[R], sums1[R];
    for (int r = 0; r < R; ++r) sums0[r] = sums1[r] = hn::Zero(d);
    const float* q = args.q;
    for (size_t i = 0; i < args.pairs * kPack; i += kPack, q += 2 * R) {
      VF even0, odd0, even1, odd1;
      Stored::Load(d, args.runs[0] + i, j, even0, odd0);
      Stored::Load(d, args.runs[1] + i, j, even1, odd1);
      FetchPack(args.ahead[0] + i);
      FetchPack(args.ahead[1] + i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const VF q_even = hn::Set(d, q[r]);
        const VF q_odd = hn::Set(d, q[R + r]);
        sums0[r] = hn::MulAdd(odd0, q_odd, hn::MulAdd(even0, q_even, sums0[r]));
        sums1[r] = hn::MulAdd(odd1, q_odd, hn::MulAdd(even1, q_even, sums1[r]));
      }
    }
    for (int r = 0; r < R; ++r) {
      hn::StoreU(sums0[r], d, args.scores + r * kPartitionKeys + j);
      hn::StoreU(sums1[r], d, args.scores + r * kPartitionKeys + kKeyRun + j);
    }
  }
}

// sums[R][stride], 32 of its columns, = sum over keys [begin, end) of weights[R][key] values[key].
template <class Stored>
struct WeighArgs {
  const Pages<Stored>& pages;
  const float* weights;  // [R][kPartitionKeys]
  int begin, end;
  size_t column, stride;
  float* sums;
};

template <class Stored, int R>
void WeighValues(const WeighArgs<Stored>& args) {
  using T = typename Stored::T;
  const DF d;
  for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
    VF low[R], high[R];
    for (int r = 0; r < R; ++r) low[r] = high[r] = hn::Zero(d);
    for (int key = args.begin; key < args.end;) {
      const int stop = std::min(args.end, key + args.pages.Contiguous(key));
      const T* HWY_RESTRICT value = args.pages.Values(key) + args.column;
      const T* ahead = args.pages.KeysAfter(key, value) + args.column;
      const float* HWY_RESTRICT weight = args.weights + key % kPartitionKeys;
      for (; key < stop; ++key, value += args.stride, ahead += args.stride, ++weight) {
        VF v_low, v_high;
        Stored::Load(d, value, j, v_low, v_high);
        FetchPack(ahead);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const VF w = hn::Set(d, weight[r * kPartitionKeys]);
          low[r] = hn::MulAdd(v_low, w, low[r]);
          high[r] = hn::MulAdd(v_high, w, high[r]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      float* to = args.sums + r * args.stride + args.column + j;
      hn::StoreU(low[r], d, to);
      hn::StoreU(high[r], d, to + kHalfPack);
    }
  }
}

template <class Stored>
struct Kernels {
  void (*score)(const ScoreArgs<Stored>&);
  void (*weigh)(const WeighArgs<Stored>&);
};

// [R - 1]: for R queries.
template <class Stored, int... R>
constexpr std::array<Kernels<Stored>, sizeof...(R)> MakeKernels(std::integer_sequence<int, R...>) {
  return {Kernels<Stored>{&ScoreRuns<Stored, R + 1>, &WeighValues<Stored, R + 1>}...};
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
