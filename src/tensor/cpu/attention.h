// Paged attention over a CpuKvPool, for one tile of queries of one KV head.
//
// A query's result is composed of partitions of 256 keys at absolute positions: scores, their
// maximum, the powers of two that are the weights, the weighted values in the order of the keys.
// Partitions are merged in order (online softmax). Neither the query's tile, nor the block table,
// nor the choice of threads changes a bit.
//
// Pure functions over the caller's memory; any thread. CpuDevice cuts a batch into tiles.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/cpu/kv_pool.h"

namespace millrace::tensor {

inline constexpr int kPartitionKeys = 256;
inline constexpr int kAttentionTileQueries =
    64;  // (position, head) pairs, if heads per group allow

struct AttentionTile {
  const CpuKvPool* pool = nullptr;
  int layer = 0, kv_head = 0;
  std::span<const BlockIndex> blocks;
  int start = 0, positions = 0;  // queries at positions [start, start + positions)
  int group = 1;                 // query heads per KV head
  float scale = 1.0f;
  int window = 0;
  bool rounds = true;        // queries and weights to bf16, over a bf16 pool
  bool on_tiles = false;     // of AMX, where there are 16 queries and they are rounded
  const float* q = nullptr;  // the group's first head at `start`; the others follow it
  size_t q_stride = 0;       // from one position to the next
  void* out = nullptr;       // of out_type, kF32 or kBF16
  DType out_type = DType::kF32;
  size_t out_stride = 0;

  int queries() const { return positions * group; }
  int first_key() const { return window > 0 && start >= window ? start - window + 1 : 0; }
  int end_key() const { return start + positions; }
  int first_partition() const { return first_key() / kPartitionKeys; }
  int end_partition() const { return (end_key() + kPartitionKeys - 1) / kPartitionKeys; }
};

// A partition's share of a tile: per query what is subtracted from its scores (-inf: it sees no key
// here), the sum of the weights, and the weighted values [value_dim].
size_t PartialFloats(const AttentionTile& tile);
// Scratch of either function below.
size_t AttentionScratchFloats(const AttentionTile& tile);

// All partitions at once: writes the tile's output.
void AttendTile(const AttentionTile& tile, float* scratch);
// In pieces, for long contexts: the partials of some partitions, later merged in order.
void AttendPartitions(const AttentionTile& tile, int begin, int end, float* partials,
                      float* scratch);
void MergePartitions(const AttentionTile& tile, const float* partials, float* scratch);

// Stores rows' keys and values of one head: positions [start, start + rows) of a sequence. k and v
// point at the head in the first row.
struct KvWrite {
  const CpuKvPool* pool = nullptr;
  int layer = 0, kv_head = 0;
  std::span<const BlockIndex> blocks;
  int start = 0, rows = 0;
  const float *k = nullptr, *v = nullptr;
  size_t k_stride = 0, v_stride = 0;
};
void WriteKvHead(const KvWrite& write);

}  // namespace millrace::tensor
