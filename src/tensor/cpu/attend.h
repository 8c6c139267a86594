// Attention over a whole mixed batch. Cuts the batch into tiles and distributes them over the
// threads. Cuts long contexts into pieces when there are fewer tiles than threads could use. The
// cuts never change a result (attention.h). Owned by a device, used by its thread.
#pragma once

#include <span>
#include <vector>

#include "tensor/cpu/attention.h"
#include "tensor/cpu/scratch.h"
#include "tensor/cpu/thread_pool.h"

namespace millrace::tensor {

class AttentionRunner {
 public:
  // `rounds`, `on_tiles`: as in AttentionTile.
  AttentionRunner(bool rounds, bool on_tiles) : rounds_(rounds), on_tiles_(on_tiles) {}

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

  const bool rounds_, on_tiles_;
  // Kept between calls to reuse their memory.
  std::vector<AttentionTile> tiles_;
  std::vector<Piece> pieces_;
  std::vector<Piece> cut_;  // one per tile that is cut: all of its partitions
};

void WriteKvSpans(const CpuKvPool& kv, int layer, Rows k, Rows v,
                  std::span<const AttentionSpan> spans, ThreadPool& threads);

}  // namespace millrace::tensor
