// The rows of a product on AMX's tiles (amx_gemm.h): tiles of 16 rows times 32 k in bf16, in the
// order in which the product reads them.
//
// A product takes its k in segments, and all of a segment's tiles are neighbours:
// [segment][tile][block of k][16 rows][32 k].
//
// Pure functions over the caller's memory; any thread. REQUIRES: as in amx_gemm.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/panel.h"

namespace millrace::tensor {

inline constexpr int kAmxTileRows = 16;
inline constexpr size_t kAmxTileNumbers = size_t{kAmxTileRows} * kBlockK;
// Blocks of a segment. Its weights of a panel stay in L1, with the rows of two tiles, while all
// rows pass.
inline constexpr int kAmxSegmentBlocks = 8;

// Blocks [begin, end) of a panel, which belong to one chain.
struct AmxSegment {
  int chain, begin, end;
  bool first, last;  // of the chain
  int blocks() const { return end - begin; }
};

// x is cut into this many tiles of 16 rows of limbs; zeros fill the last one.
int AmxTiles(const GemmCall& call);

// visit(AmxSegment) in order. With few rows a segment is a whole chain, because a panel is read
// front to back.
template <typename Visit>
void ForEachAmxSegment(const GemmCall& call, Visit visit) {
  const CpuPackedMatrix& w = *call.w;
  for (int chain = 0; chain < w.chains(); ++chain) {
    const int start = w.PackedStart(chain) / kBlockK, end = w.PackedStart(chain + 1) / kBlockK;
    const int blocks = end - start, most = AmxTiles(call) <= 2 ? blocks : kAmxSegmentBlocks;
    // A chain without k is a segment too: zeros.
    const int count = blocks == 0 ? 1 : (blocks + most - 1) / most;
    for (int i = 0; i < count; ++i) {
      visit(AmxSegment{.chain = chain,
                       .begin = start + blocks * i / count,
                       .end = start + blocks * (i + 1) / count,
                       .first = i == 0,
                       .last = i + 1 == count});
    }
  }
}

// Where tile `i` of a segment begins.
inline size_t AmxTileAt(const GemmCall& call, const AmxSegment& segment, int i) {
  return (static_cast<size_t>(segment.begin) * static_cast<size_t>(AmxTiles(call)) +
          static_cast<size_t>(i) * static_cast<size_t>(segment.blocks())) *
         kAmxTileNumbers;
}

// Bytes of all tiles.
size_t AmxTileBytes(const GemmCall& call);
// Writes tile `i`, rounded. `x`: its rows, f32, or bf16 with one limb.
void AmxPackTile(const GemmCall& call, Rows x, int i, uint16_t* tiles);

// 16 numbers rounded to bf16, or with `limb` 1 what is missing to them; zeros from `count` on.
void AmxPackNumbers(const float* from, int count, int limb, uint16_t* to);

}  // namespace millrace::tensor
