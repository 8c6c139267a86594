#include "tensor/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tensor/cpu/amx_attention.h"
#include "tensor/cpu/attention-inl.h"
#include "tensor/cpu/lanes-inl.h"
#include "tensor/cpu/math-inl.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Partial {
  float* max;  // [queries]: what is subtracted from scores in units of log 2, and grows with them
  float* sum;  // [queries]: of weights
  float* values;  // [queries][value_dim]
};

Partial PartialAt(const AttentionTile& tile, float* floats) {
  return {floats, floats + tile.queries(), floats + 2 * tile.queries()};
}

size_t CountPartialFloats(const AttentionTile& tile) {
  return static_cast<size_t>(tile.queries()) * (tile.pool->value_dim() + 2);
}

// Merges `next` into the running result (FlashAttention's merge). Rows that see no key in `next` do
// not change.
void Merge(const AttentionTile& tile, const Partial& next, const Partial& running) {
  const DF d;
  const size_t width = tile.pool->value_dim();
  for (int i = 0; i < tile.queries(); ++i) {
    if (next.max[i] == kMinusInfinity) continue;
    const float max = std::max(running.max[i], next.max[i]);
    const VF keep = PowerOfTwo(d, hn::Set(d, running.max[i] - max));
    const VF take = PowerOfTwo(d, hn::Set(d, next.max[i] - max));
    running.max[i] = max;
    running.sum[i] = hn::GetLane(
        hn::MulAdd(hn::Set(d, next.sum[i]), take, hn::Mul(hn::Set(d, running.sum[i]), keep)));
    float* to = running.values + i * width;
    const float* from = next.values + i * width;
    for (size_t j = 0; j < width; j += hn::Lanes(d)) {
      const VF kept = hn::Mul(hn::LoadU(d, to + j), keep);
      hn::StoreU(FactorOf(hn::MulAdd(hn::LoadU(d, from + j), take, kept)), d, to + j);
    }
  }
}

void ClearRunning(const AttentionTile& tile, const Partial& running) {
  std::fill_n(running.max, tile.queries(), kMinusInfinity);
  std::fill_n(running.sum, tile.queries(), 0.0f);
  std::fill_n(running.values, tile.queries() * static_cast<size_t>(tile.pool->value_dim()), 0.0f);
}

// to[i] = x[i] * scale.
template <class Stored>
void WriteScaled(const float* x, float scale, int count, typename Stored::T* to) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF y = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale));
    if constexpr (Stored::kDType == DType::kF32) {
      hn::StoreU(y, d, to + i);
    } else {
      Stored::StoreHalf(d, y, to + i);
    }
  }
  for (; i < count; ++i) to[i] = Stored::Narrow(x[i] * scale);
}

void WriteOutput(const AttentionTile& tile, const Partial& running) {
  const int head_dim = tile.pool->shape().head_dim;
  for (int i = 0; i < tile.queries(); ++i) {
    const size_t at = i / tile.group * tile.out_stride + i % tile.group * head_dim;
    const float* values = running.values + static_cast<size_t>(i) * tile.pool->value_dim();
    // A sum of 0 means that every score was -inf: nothing to average.
    const float scale =
        running.sum[i] > 0.0f || running.sum[i] != running.sum[i] ? 1.0f / running.sum[i] : 0.0f;
    if (tile.out_type == DType::kBF16) {
      WriteScaled<StoredBF16>(values, scale, head_dim, static_cast<uint16_t*>(tile.out) + at);
    } else {
      WriteScaled<StoredF32>(values, scale, head_dim, static_cast<float*>(tile.out) + at);
    }
  }
}

// Queries of the tile that are computed on AMX's tiles: whole strips of them.
int QueriesOnTiles(const AttentionTile& tile) {
  const bool rounds = tile.rounds && tile.pool->shape().dtype == DType::kBF16;
  return tile.on_tiles && rounds ? tile.queries() / kAmxStripQueries * kAmxStripQueries : 0;
}

// What a walk needs while it lasts, in floats.
struct WalkScratch {
  explicit WalkScratch(const AttentionTile& tile) {
    const size_t head_dim = tile.pool->shape().head_dim;
    const bool tiles = QueriesOnTiles(tile) > 0;
    scores = (tiles ? kAmxStripQueries : kStripQueries) * kPartitionKeys;
    const size_t block_dims = AmxBlockDims(static_cast<int>(head_dim));
    q = std::max((head_dim + 1) / 2 * 2, tiles ? block_dims / 2 : 0) * tile.queries();
    values = tiles ? AmxStagedNumbers(tile.pool->value_dim()) / 2 : 0;
    weights = tiles ? kAmxWeightNumbers / 2 : 0;
  }
  size_t floats() const { return scores + q + values + weights; }

  size_t scores, q, values, weights;
};

// Processes one tile partition by partition. Queries are taken in strips of at most kStripQueries,
// or of 16 on AMX's tiles; query i is head i % group of position start + i / group.
template <class Stored>
class TileWalk {
 public:
  TileWalk(const AttentionTile& tile, float* scratch)
      : tile_(tile),
        rounds_(kSumsInBlocks<Stored> && tile.rounds),
        on_tiles_(QueriesOnTiles(tile)),
        head_dim_(tile.pool->shape().head_dim),
        even_dim_((head_dim_ + 1) / 2 * 2),
        scores_(scratch) {
    const WalkScratch sizes(tile);
    q_ = scores_ + sizes.scores;
    values_ = reinterpret_cast<uint16_t*>(q_ + sizes.q);
    weights_ = values_ + 2 * sizes.values;
    if (on_tiles_ > 0) session_.emplace(AmxAttentionShapes(head_dim_));
    PackQueries();
  }

  void Partition(int partition, const Partial& partial) {
    const int base = partition * kPartitionKeys;
    const int begin = std::max(base, FirstKey(0));
    const int end = std::min(base + kPartitionKeys, tile_.end_key());
    runs_.Find(tile_, begin, end);
    if constexpr (kSumsInBlocks<Stored>) {
      if (on_tiles_ > 0) {
        AmxStageValues(runs_.values, begin - base, end - base, tile_.pool->value_dim(), values_);
      }
    }
    for (int first = 0; first < tile_.queries();) {
      const int count =
          first < on_tiles_ ? kAmxStripQueries : std::min(kStripQueries, tile_.queries() - first);
      Strip(partition, first, count, partial);
      first += count;
    }
  }

 private:
  static constexpr auto kKernels =
      MakeKernels<Stored>(std::make_integer_sequence<int, kStripQueries>());

  int Position(int query) const { return tile_.start + query / tile_.group; }
  int FirstKey(int query) const {
    return tile_.window > 0 ? std::max(0, Position(query) - tile_.window + 1) : 0;
  }

  // Where the strip that starts at query `first` is packed: as [even_dim][queries of the strip], or
  // for tiles.
  float* QueriesAt(int first) { return q_ + std::max<size_t>(even_dim_, q_dims()) * first; }
  uint16_t* TileQueriesAt(int first) { return reinterpret_cast<uint16_t*>(QueriesAt(first)); }
  size_t q_dims() const { return on_tiles_ > 0 ? AmxBlockDims(head_dim_) / 2 : 0; }

  // As it is multiplied with keys.
  float QueryOf(float x) const {
    if constexpr (!kSumsInBlocks<Stored>) return x;
    const float high = FloatFromBF16(BF16FactorOf(x));
    return rounds_ ? high : high + FloatFromBF16(BF16FactorOf(x - high));
  }

  void PackQueries() {
    for (int i = 0; i < tile_.queries(); ++i) {
      const float* from = tile_.q + i / tile_.group * tile_.q_stride + i % tile_.group * head_dim_;
      if (i < on_tiles_) {
        const int in_strip = i % kAmxStripQueries;
        AmxPackQuery(from, head_dim_, in_strip, TileQueriesAt(i - in_strip));
        continue;
      }
      const int first = on_tiles_ + (i - on_tiles_) / kStripQueries * kStripQueries;
      const int height = std::min(kStripQueries, tile_.queries() - first);
      float* to = QueriesAt(first) + (i - first);
      for (int j = 0; j < head_dim_; ++j) {
        to[j * height] = QueryOf(from[j]);
      }
      if (head_dim_ < even_dim_) to[head_dim_ * height] = 0.0f;
    }
  }

  void Strip(int partition, int first, int count, const Partial& partial) {
    const int width = tile_.pool->value_dim();
    const int begin = std::max(partition * kPartitionKeys, FirstKey(first));
    const int end = std::min((partition + 1) * kPartitionKeys, Position(first + count - 1) + 1);
    if (begin >= end) {
      std::fill_n(partial.max + first, count, kMinusInfinity);
      return;
    }
    const int base = partition * kPartitionKeys;
    if constexpr (kSumsInBlocks<Stored>) {
      if (first < on_tiles_) {
        AmxScore(TileQueriesAt(first), head_dim_, runs_.keys, (begin - base) / kKeyRun,
                 (end - base + kKeyRun - 1) / kKeyRun, scores_);
        SoftmaxOfStrip(partition, begin, end, first, count, partial);
        AmxWeigh(scores_, values_, begin - base, end - base, width, weights_,
                 partial.values + static_cast<size_t>(first) * width);
        return;
      }
    }
    const StripArgs<Stored> args{.runs = runs_,
                                 .begin = begin - base,
                                 .end = end - base,
                                 .q = QueriesAt(first),
                                 .pairs = even_dim_ / 2,
                                 .scores = scores_,
                                 .sums = partial.values + static_cast<size_t>(first) * width,
                                 .width = static_cast<size_t>(width)};
    kKernels[count - 1].score(args);
    SoftmaxOfStrip(partition, begin, end, first, count, partial);
    kKernels[count - 1].weigh(args);
  }

  void SoftmaxOfStrip(int partition, int begin, int end, int first, int count,
                      const Partial& partial) {
    for (int r = 0; r < count; ++r) {
      float* scores = scores_ + r * kPartitionKeys;
      if (rounds_) {
        Softmax<true>(partition, begin, end, first + r, scores, partial);
      } else {
        Softmax<false>(partition, begin, end, first + r, scores, partial);
      }
    }
  }

  // A weight for a score that is `x` above what is subtracted.
  template <bool kRounds>
  static HWY_INLINE VF WeightOf(VF x) {
    const DF d;
    if constexpr (kRounds) return RoundedPowerOfTwo(d, x);
    const VF weight = PowerOfTwo(d, x);
    if constexpr (!kSumsInBlocks<Stored>) return weight;
    const VF high = hn::BitCast(d, StoredBF16::Rounded(weight));
    return hn::Add(high, hn::BitCast(d, StoredBF16::Rounded(hn::Sub(weight, high))));
  }

  // Turns one query's products with keys into weights e^(scale (product - largest product)); keys
  // that it does not see get 0.
  template <bool kRounds>
  void Softmax(int partition, int begin, int end, int query, float* scores,
               const Partial& partial) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const int lanes = static_cast<int>(hn::Lanes(d));
    const int base = partition * kPartitionKeys;
    const auto first_seen = hn::Set(di, FirstKey(query) - base);
    const auto last_seen = hn::Set(di, Position(query) - base);
    const int from = (begin - base) / kKeyRun * kKeyRun;
    const int to = (end - base + kKeyRun - 1) / kKeyRun * kKeyRun;
    const bool sees_all = FirstKey(query) <= base + from && Position(query) >= base + to - 1;
    Lanes maxima = Lanes::Of(kMinusInfinity);
    for (int i = from; i < to; i += kKeyRun) {
      for (size_t v = 0; v < kLaneVectors; ++v) {
        float* at = scores + i + static_cast<int>(v) * lanes;
        VF score = hn::LoadU(d, at);
        if (!sees_all) {
          const auto key = hn::Iota(di, i + static_cast<int>(v) * lanes);
          const auto hidden = hn::Or(hn::Lt(key, first_seen), hn::Gt(key, last_seen));
          score = hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, kMinusInfinity), score);
          hn::StoreU(score, d, at);
        }
        maxima.vectors[v] = hn::Max(maxima.vectors[v], score);
      }
    }
    const float scale = tile_.scale * kLog2E;
    const float top = maxima.Max() * scale - (kRounds ? 0.5f : 0.0f);
    partial.max[query] = top;
    if (top == kMinusInfinity) {
      std::fill(scores + from, scores + to, 0.0f);
      partial.sum[query] = 0.0f;
      return;
    }
    static_assert(kKeyRun == kVirtualLanes);  // a lane's keys: one position modulo 16
    Lanes sums = Lanes::Of(0.0f);
    const VF by = hn::Set(d, scale), shift = hn::Set(d, top);
    for (int i = from; i < to; i += kKeyRun) {
      for (size_t v = 0; v < kLaneVectors; ++v) {
        float* at = scores + i + static_cast<int>(v) * lanes;
        const VF score = hn::Mul(hn::LoadU(d, at), by);
        const VF weight = WeightOf<kRounds>(hn::Sub(score, shift));
        hn::StoreU(weight, d, at);
        sums.vectors[v] = hn::Add(sums.vectors[v], weight);
      }
    }
    partial.sum[query] = sums.Sum();
  }

  const AttentionTile& tile_;
  const bool rounds_;
  const int on_tiles_;
  Runs<Stored> runs_;
  const int head_dim_, even_dim_;
  float* const scores_;  // [queries of a strip][kPartitionKeys]
  float* q_;
  uint16_t *values_, *weights_;  // for tiles
  std::optional<TileSession> session_;
};

size_t WalkFloats(const AttentionTile& tile) { return WalkScratch(tile).floats(); }

size_t ScratchFloats(const AttentionTile& tile) {
  return WalkFloats(tile) + 2 * CountPartialFloats(tile);
}

void Whole(const AttentionTile& tile, float* scratch) {
  const Partial next = PartialAt(tile, scratch + WalkFloats(tile));
  const Partial running = PartialAt(tile, scratch + WalkFloats(tile) + CountPartialFloats(tile));
  ClearRunning(tile, running);
  WithStored(tile.pool->shape().dtype, [&](auto stored) {
    TileWalk<decltype(stored)> walk(tile, scratch);
    for (int i = tile.first_partition(); i < tile.end_partition(); ++i) {
      walk.Partition(i, next);
      Merge(tile, next, running);
    }
  });
  WriteOutput(tile, running);
}

void SomePartitions(const AttentionTile& tile, int begin, int end, float* partials,
                    float* scratch) {
  WithStored(tile.pool->shape().dtype, [&](auto stored) {
    TileWalk<decltype(stored)> walk(tile, scratch);
    for (int i = begin; i < end; ++i) {
      walk.Partition(i, PartialAt(tile, partials + (i - begin) * CountPartialFloats(tile)));
    }
  });
}

void MergeAll(const AttentionTile& tile, const float* partials, float* scratch) {
  const Partial running = PartialAt(tile, scratch);
  ClearRunning(tile, running);
  for (int i = 0; i < tile.end_partition() - tile.first_partition(); ++i) {
    Merge(tile, PartialAt(tile, const_cast<float*>(partials) + i * CountPartialFloats(tile)),
          running);
  }
  WriteOutput(tile, running);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(ScratchFloats);
HWY_EXPORT(CountPartialFloats);
HWY_EXPORT(Whole);
HWY_EXPORT(SomePartitions);
HWY_EXPORT(MergeAll);

size_t PartialFloats(const AttentionTile& tile) {
  return HWY_DYNAMIC_DISPATCH(CountPartialFloats)(tile);
}

size_t AttentionScratchFloats(const AttentionTile& tile) {
  return HWY_DYNAMIC_DISPATCH(ScratchFloats)(tile);
}

void AttendTile(const AttentionTile& tile, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Whole)(tile, scratch);
}

void AttendPartitions(const AttentionTile& tile, int begin, int end, float* partials,
                      float* scratch) {
  HWY_DYNAMIC_DISPATCH(SomePartitions)(tile, begin, end, partials, scratch);
}

void MergePartitions(const AttentionTile& tile, const float* partials, float* scratch) {
  HWY_DYNAMIC_DISPATCH(MergeAll)(tile, partials, scratch);
}

}  // namespace millrace::tensor
#endif
