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
#include "tensor/cpu/panel.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries whose sums fit in registers together; up to 3 vectors for each.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kStripQueries = 8;
#else
constexpr int kStripQueries = 4;
#endif

// Whether the cache's type has sums in blocks (docs/decisions/0018-block-products.md).
template <class Stored>
constexpr bool kSumsInBlocks = Stored::kDType == DType::kBF16;

// Where the runs of 16 keys of one partition are, and their values (kv_pool.h). A run's keys take
// as many bytes as its values.
template <class Stored>
struct Runs {
  using T = typename Stored::T;
  static constexpr int kCount = kPartitionKeys / kKeyRun;

  const T* keys[kCount];
  const T* values[kCount];
  const T* ahead[kCount];  // the keys of the next partition, to be prefetched with these values

  // Runs with keys in [begin, end) of the tile's sequence.
  void Find(const AttentionTile& tile, int begin, int end) {
    const CpuKvPool& pool = *tile.pool;
    const size_t key_bytes = pool.key_bytes(), value_bytes = pool.value_bytes();
    const int block_size = pool.shape().block_size, per_block = block_size / kKeyRun;
    // Block and run in it; divisions would take longer than a short sequence's attention.
    struct Place {
      int block, run;
    };
    const auto place_of = [&](int key) {
      return Place{key / block_size, key % block_size / kKeyRun};
    };
    const auto next = [&](Place& at) {
      if (++at.run == per_block) at = {at.block + 1, 0};
    };
    const auto keys_at = [&](const Place& at) {
      return pool.keys(tile.layer, tile.blocks[at.block], tile.kv_head) +
             at.run * (key_bytes / per_block);
    };
    Place here = place_of(begin), later = place_of(begin + kPartitionKeys);
    for (int run = begin % kPartitionKeys / kKeyRun, key = begin / kKeyRun * kKeyRun; key < end;
         key += kKeyRun, ++run, next(here), next(later)) {
      const uint8_t* at = keys_at(here);
      keys[run] = reinterpret_cast<const T*>(at);
      values[run] = reinterpret_cast<const T*>(
          pool.values(tile.layer, tile.blocks[here.block], tile.kv_head) +
          here.run * (value_bytes / per_block));
      const bool there = static_cast<size_t>(later.block) < tile.blocks.size();
      ahead[run] = there ? reinterpret_cast<const T*>(keys_at(later)) : values[run];
    }
  }
};

// Prefetches into L2 what the next product reads, while this one computes.
template <typename T>
HWY_INLINE void FetchPack(const T* pack) {
  for (size_t i = 0; i < kPack; i += 64 / sizeof(T)) __builtin_prefetch(pack + i, 0, 2);
}

// A strip of queries and the keys [begin, end) of a partition, counted from its first.
template <class Stored>
struct StripArgs {
  const Runs<Stored>& runs;
  int begin, end;
  const float* q;  // [2 * pairs][R]
  int pairs;       // of dimensions
  float* scores;   // [R][kPartitionKeys]; later the weights
  float* sums;     // [R][width]
  size_t width;    // of a token's values
};

// scores of one run.
template <class Stored, int R>
void ScoreRun(const StripArgs<Stored>& args, int run) {
  const typename Stored::T* HWY_RESTRICT keys = args.runs.keys[run];
  const typename Stored::T* ahead = args.runs.values[run];
  const typename Stored::T* next = (run + 1) * kKeyRun < args.end ? args.runs.keys[run + 1] : keys;
  float* scores = args.scores + run * kKeyRun;
  const DF d;
  for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
    VF sums[R];
    for (int r = 0; r < R; ++r) sums[r] = hn::Zero(d);
    const float* q = args.q;
    for (int first = 0; first < args.pairs; first += kUnitPairs) {
      VF even[R], odd[R];  // of a block
      if constexpr (kSumsInBlocks<Stored>) {
        for (int r = 0; r < R; ++r) even[r] = odd[r] = hn::Zero(d);
      }
      for (int i = first; i < std::min(args.pairs, first + kUnitPairs); ++i, q += 2 * R) {
        VF k_even, k_odd;
        Stored::Load(d, keys + i * kPack, j, k_even, k_odd);
        FetchPack(ahead + i * kPack);
        // Few queries wait for memory, which runs do not follow one another in.
        if constexpr (R <= kStripQueries / 2) FetchPack(next + i * kPack);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const VF q_even = hn::Set(d, q[r]), q_odd = hn::Set(d, q[R + r]);
          if constexpr (kSumsInBlocks<Stored>) {
            even[r] = hn::MulAdd(k_even, q_even, even[r]);
            odd[r] = hn::MulAdd(k_odd, q_odd, odd[r]);
          } else {
            sums[r] = hn::MulAdd(k_odd, q_odd, hn::MulAdd(k_even, q_even, sums[r]));
          }
        }
      }
      if constexpr (kSumsInBlocks<Stored>) {
        for (int r = 0; r < R; ++r) sums[r] = hn::Add(sums[r], hn::Add(even[r], odd[r]));
      }
    }
    for (int r = 0; r < R; ++r) hn::StoreU(sums[r], d, scores + r * kPartitionKeys + j);
  }
}

template <class Stored, int R>
void Score(const StripArgs<Stored>& args) {
  for (int run = args.begin / kKeyRun; run * kKeyRun < args.end; ++run) {
    ScoreRun<Stored, R>(args, run);
  }
}

// sums = the weighted values in the order of the keys.
template <class Stored, int R>
void WeighInOrder(const StripArgs<Stored>& args) {
  using T = typename Stored::T;
  const DF d;
  for (size_t column = 0; column < args.width; column += kPack) {
    for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
      VF low[R], high[R];
      for (int r = 0; r < R; ++r) low[r] = high[r] = hn::Zero(d);
      for (int key = args.begin; key < args.end;) {
        const int run = key / kKeyRun, stop = std::min(args.end, (run + 1) * kKeyRun);
        const size_t at = static_cast<size_t>(key % kKeyRun) * args.width + column;
        const T* HWY_RESTRICT value = args.runs.values[run] + at;
        const T* ahead = args.runs.ahead[run] + at;
        const float* HWY_RESTRICT weight = args.scores + key;
        for (; key < stop; ++key, value += args.width, ahead += args.width, ++weight) {
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
        float* to = args.sums + r * args.width + column + j;
        hn::StoreU(low[r], d, to);
        hn::StoreU(high[r], d, to + kHalfPack);
      }
    }
  }
}

// Groups of 16 dimensions whose sums fit in registers together. A token's values have an even
// number of groups.
template <int R>
constexpr int kValueGroups = R <= kStripQueries / 2 ? 2 : 1;
constexpr size_t kGroupNumbers = kKeyRun * kHalfPack;  // of a run

// Sums over the even keys of a block and over the odd.
template <int R>
struct BlockSums {
  VF even[kValueGroups<R>][R], odd[kValueGroups<R>][R];
};

// Pairs [first, end) of a run.
template <class Stored, int R>
HWY_INLINE void WeighPairs(const typename Stored::T* HWY_RESTRICT words, const float* weights,
                           int first, int end, size_t j, const typename Stored::T* ahead,
                           BlockSums<R>& sums) {
  const DF d;
  for (int i = first; i < end; ++i) {
    VF v_even[kValueGroups<R>], v_odd[kValueGroups<R>];
    for (int g = 0; g < kValueGroups<R>; ++g) {
      Stored::Load(d, words + g * kGroupNumbers + i * kPack, j, v_even[g], v_odd[g]);
      FetchPack(ahead + g * kGroupNumbers + i * kPack);
    }
    const float* HWY_RESTRICT weight = weights + 2 * i;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF w_even = hn::Set(d, weight[r * kPartitionKeys]);
      const VF w_odd = hn::Set(d, weight[r * kPartitionKeys + 1]);
      for (int g = 0; g < kValueGroups<R>; ++g) {
        sums.even[g][r] = hn::MulAdd(v_even[g], w_even, sums.even[g][r]);
        sums.odd[g][r] = hn::MulAdd(v_odd[g], w_odd, sums.odd[g][r]);
      }
    }
  }
}

// Copies groups of a run without the tokens outside [first, end), which share words with those
// inside.
template <int kGroups, typename T>
const T* ClearEdges(const T* words, int first, int end, T* copy) {
  std::copy_n(words, kGroups * kGroupNumbers, copy);
  for (size_t i = 0; i < kGroups * kHalfPack; ++i) {
    T* pair = copy + i / kHalfPack * kGroupNumbers + 2 * (i % kHalfPack);
    if (first % 2 != 0) pair[first / 2 * kPack] = 0;
    if (end % 2 != 0) pair[end / 2 * kPack + 1] = 0;
  }
  return copy;
}

// In blocks of 32 keys, which are two runs. The weights of keys outside [begin, end) are zeros, and
// so must their values be taken: what is stored there may be no number.
template <class Stored, int R>
void WeighInBlocks(const StripArgs<Stored>& args) {
  constexpr int kGroups = kValueGroups<R>;
  const DF d;
  HWY_ALIGN typename Stored::T edge[kGroups * kGroupNumbers];
  for (size_t column = 0; column < args.width; column += kGroups * kHalfPack) {
    for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
      VF all[kGroups][R];
      for (auto& group : all) std::fill_n(group, R, hn::Zero(d));
      for (int block = args.begin / kBlockK * kBlockK; block < args.end; block += kBlockK) {
        BlockSums<R> sums;
        for (auto& group : sums.even) std::fill_n(group, R, hn::Zero(d));
        for (auto& group : sums.odd) std::fill_n(group, R, hn::Zero(d));
        for (int key = block; key < std::min(args.end, block + kBlockK); key += kKeyRun) {
          const int first = std::max(0, args.begin - key), end = std::min(kKeyRun, args.end - key);
          if (first >= kKeyRun) continue;
          const auto* words = args.runs.values[key / kKeyRun] + column * kKeyRun;
          const auto* ahead = args.runs.ahead[key / kKeyRun] + column * kKeyRun;
          if (HWY_UNLIKELY((first | end) % 2 != 0)) {
            words = ClearEdges<kGroups>(words, first, end, edge);
          }
          WeighPairs<Stored, R>(words, args.scores + key, first / 2, (end + 1) / 2, j, ahead, sums);
        }
        for (int g = 0; g < kGroups; ++g) {
          for (int r = 0; r < R; ++r) {
            all[g][r] = hn::Add(all[g][r], hn::Add(sums.even[g][r], sums.odd[g][r]));
          }
        }
      }
      for (int g = 0; g < kGroups; ++g) {
        float* to = args.sums + column + g * kHalfPack + j;
        for (int r = 0; r < R; ++r) hn::StoreU(all[g][r], d, to + r * args.width);
      }
    }
  }
}

template <class Stored>
struct Kernels {
  void (*score)(const StripArgs<Stored>&);
  void (*weigh)(const StripArgs<Stored>&);
};

// [R - 1]: for R queries.
template <class Stored, int... R>
constexpr std::array<Kernels<Stored>, sizeof...(R)> MakeKernels(std::integer_sequence<int, R...>) {
  if constexpr (kSumsInBlocks<Stored>) {
    return {Kernels<Stored>{&Score<Stored, R + 1>, &WeighInBlocks<Stored, R + 1>}...};
  } else {
    return {Kernels<Stored>{&Score<Stored, R + 1>, &WeighInOrder<Stored, R + 1>}...};
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
