// Attention over a whole mixed batch: cuts it in tiles, shares them out over the threads, and cuts
// long contexts in pieces where there are fewer tiles than threads could use. How it is cut changes
// who does what, never a result (attention.h).
#pragma once

#include <span>
#include <vector>

#include "tensor/cpu/attention.h"
#include "tensor/cpu/scratch.h"
#include "tensor/cpu/thread_pool.h"

namespace millrace::tensor {

class AttentionRunner {
 public:
  void Run(const CpuKvPool& kv, int layer, Rows q, std::span<const AttentionSpan> spans,
           const AttentionSpec& spec, Rows out, ThreadPool& threads, Scratch& scratch);

 private:
  struct Piece {
    int tile = 0;
    int begin = 0, end = 0;     // partitions
    float* partials = nullptr;  // null: the whole tile at once
  };
  void CutTiles(const CpuKvPool& kv, int layer, Rows q, std::span<const AttentionSpan> spans,
                const AttentionSpec& spec, Rows out);
  void CutPieces(int threads, Scratch& scratch);

  // Kept between calls for their memory.
  std::vector<AttentionTile> tiles_;
  std::vector<Piece> pieces_;
  std::vector<Piece> cut_;  // one per tile that is in pieces: all of its partitions
};

void WriteKvSpans(const CpuKvPool& kv, int layer, Rows k, Rows v,
                  std::span<const AttentionSpan> spans, ThreadPool& threads);

}  // namespace millrace::tensor
