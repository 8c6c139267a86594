#include "tensor/cpu/attend.h"

#include <algorithm>

namespace millrace::tensor {
namespace {

// Pieces of work per thread; several, to even out their unequal lengths.
constexpr int kPiecesPerThread = 4;
// Below this size, run on one thread.
constexpr size_t kMinParallelNumbers = 4096;

const float* At(const Rows& x, int row, int column) {
  return static_cast<const float*>(x.data) + static_cast<size_t>(row) * x.stride + column;
}

void CheckSpan(const AttentionSpan& span, const KvShape& shape, int rows) {
  MR_CHECK(span.first_row >= 0 && span.num_rows >= 0 && span.first_row + span.num_rows <= rows)
      << span.first_row << " + " << span.num_rows << " of " << rows;
  MR_CHECK(static_cast<int64_t>(span.blocks.size()) * shape.block_size >=
           span.start + span.num_rows)
      << span.blocks.size() << " blocks for " << span.start + span.num_rows << " tokens";
}

int Partitions(const AttentionTile& tile) { return tile.end_partition() - tile.first_partition(); }

// Multiply-adds up to a constant factor.
int64_t Cost(const AttentionTile& tile, int partitions) {
  return int64_t{tile.queries()} * partitions;
}

}  // namespace

void AttentionRunner::CutTiles(const CpuKvPool& kv, int layer, Rows q,
                               std::span<const AttentionSpan> spans, const AttentionSpec& spec,
                               Rows out) {
  const KvShape& shape = kv.shape();
  const int heads = q.cols / shape.head_dim;
  MR_CHECK(q.cols == heads * shape.head_dim && heads % shape.num_kv_heads == 0)
      << q.cols << " columns of queries for " << shape.num_kv_heads << " KV heads of "
      << shape.head_dim;
  MR_CHECK(out.rows == q.rows && out.cols == q.cols);
  MR_CHECK(spec.scale > 0) << spec.scale;
  const int group = heads / shape.num_kv_heads;
  const int positions = std::max(1, kAttentionTileQueries / group);
  tiles_.clear();
  for (const AttentionSpan& span : spans) {
    CheckSpan(span, shape, q.rows);
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      for (int i = 0; i < span.num_rows; i += positions) {
        const int row = span.first_row + i, column = head * group * shape.head_dim;
        tiles_.push_back({.pool = &kv,
                          .layer = layer,
                          .kv_head = head,
                          .blocks = span.blocks,
                          .start = span.start + i,
                          .positions = std::min(positions, span.num_rows - i),
                          .group = group,
                          .scale = spec.scale,
                          .window = spec.window,
                          .rounds = rounds_,
                          .on_tiles = on_tiles_,
                          .q = At(q, row, column),
                          .q_stride = static_cast<size_t>(q.stride),
                          .out = out.Slice(row, 1).Columns(column, group * shape.head_dim).data,
                          .out_type = out.type,
                          .out_stride = static_cast<size_t>(out.stride)});
      }
    }
  }
}

void AttentionRunner::CutPieces(int threads, Scratch& scratch) {
  int64_t total = 0;
  for (const AttentionTile& tile : tiles_) total += Cost(tile, Partitions(tile));
  // Cut a tile that is more than its share of the work, at partition boundaries.
  const int64_t share = std::max<int64_t>(1, total / (int64_t{kPiecesPerThread} * threads));
  pieces_.clear();
  cut_.clear();
  size_t partial_floats = 0;
  for (int i = 0; i < static_cast<int>(tiles_.size()); ++i) {
    const AttentionTile& tile = tiles_[i];
    const int partitions = Partitions(tile), first = tile.first_partition();
    if (threads == 1 || partitions < 2 || Cost(tile, partitions) <= 2 * share) {
      pieces_.push_back({.tile = i, .begin = first, .end = first + partitions});
      continue;
    }
    cut_.push_back({.tile = i, .begin = first, .end = first + partitions});
    partial_floats += PartialFloats(tile) * partitions;
  }
  float* partials = cut_.empty() ? nullptr : scratch.Shared(partial_floats);
  for (Piece& whole : cut_) {
    const AttentionTile& tile = tiles_[whole.tile];
    whole.partials = partials;
    const int step = static_cast<int>(std::max<int64_t>(1, share / tile.queries()));
    for (int begin = whole.begin; begin < whole.end; begin += step) {
      pieces_.push_back({.tile = whole.tile,
                         .begin = begin,
                         .end = std::min(whole.end, begin + step),
                         .partials = partials + (begin - whole.begin) * PartialFloats(tile)});
    }
    partials += PartialFloats(tile) * (whole.end - whole.begin);
  }
  // Longest first, so that the threads finish at about the same time.
  std::sort(pieces_.begin(), pieces_.end(), [&](const Piece& a, const Piece& b) {
    return Cost(tiles_[a.tile], a.end - a.begin) > Cost(tiles_[b.tile], b.end - b.begin);
  });
}

void AttentionRunner::Run(const CpuKvPool& kv, int layer, Rows q,
                          std::span<const AttentionSpan> spans, const AttentionSpec& spec, Rows out,
                          ThreadPool& threads, Scratch& scratch) {
  CutTiles(kv, layer, q, spans, spec, out);
  CutPieces(threads.threads(), scratch);
  size_t floats = 0;
  for (const AttentionTile& tile : tiles_) floats = std::max(floats, AttentionScratchFloats(tile));
  scratch.ReservePerThread(floats);
  threads.ParallelFor(static_cast<int>(pieces_.size()), 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const Piece& piece = pieces_[i];
      float* own = scratch.OfThread(thread);
      if (piece.partials == nullptr) {
        AttendTile(tiles_[piece.tile], own);
      } else {
        AttendPartitions(tiles_[piece.tile], piece.begin, piece.end, piece.partials, own);
      }
    }
  });
  threads.ParallelFor(static_cast<int>(cut_.size()), 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      MergePartitions(tiles_[cut_[i].tile], cut_[i].partials, scratch.OfThread(thread));
    }
  });
}

void WriteKvSpans(const CpuKvPool& kv, int layer, Rows k, Rows v,
                  std::span<const AttentionSpan> spans, ThreadPool& threads) {
  const KvShape& shape = kv.shape();
  MR_CHECK(k.cols == shape.num_kv_heads * shape.head_dim && v.cols == k.cols && v.rows == k.rows);
  MR_CHECK(layer >= 0 && layer < shape.num_layers) << layer;
  for (const AttentionSpan& span : spans) CheckSpan(span, shape, k.rows);
  // Threads divide the heads: two tokens' keys can share a cache line, two heads' cannot.
  const bool parallel = SaturatingProduct(k.rows, k.cols) >= kMinParallelNumbers;
  threads.ParallelFor(shape.num_kv_heads, parallel ? 1 : shape.num_kv_heads,
                      [&](int begin, int end, int) {
                        for (int head = begin; head < end; ++head) {
                          for (const AttentionSpan& span : spans) {
                            WriteKvHead({.pool = &kv,
                                         .layer = layer,
                                         .kv_head = head,
                                         .blocks = span.blocks,
                                         .start = span.start,
                                         .rows = span.num_rows,
                                         .k = At(k, span.first_row, head * shape.head_dim),
                                         .v = At(v, span.first_row, head * shape.head_dim),
                                         .k_stride = static_cast<size_t>(k.stride),
                                         .v_stride = static_cast<size_t>(v.stride)});
                          }
                        }
                      });
}

}  // namespace millrace::tensor
