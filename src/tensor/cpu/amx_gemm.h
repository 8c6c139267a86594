// The product of gemm.h for bf16 weights on AMX's tiles: 16 rows of x times 16 outputs times 32 k
// an instruction. The bits are those of gemm.h.
//
// Pure functions over the caller's memory; any thread. REQUIRES: AmxIsThere(), and a processor with
// AVX-512. CpuDevice splits the work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/gemm.h"

namespace millrace::tensor {

inline constexpr int kAmxTileRows = 16;

// x is cut into this many tiles of 16 rows of limbs; zeros fill the last one.
int AmxTiles(const GemmCall& call);
// Bytes of all of them.
size_t AmxTileBytes(const GemmCall& call);
// Writes tile `i` of x as [packed_k / 32][16][32], rounded.
void AmxPackTile(const GemmCall& call, int i, uint16_t* tiles);

// Floats of scratch that AmxPanels needs.
size_t AmxScratchFloats(const GemmCall& call);
// Computes panels [panel_begin, panel_end) of all rows from `tiles`; with gates, pairs of them.
void AmxPanels(const GemmCall& call, const uint16_t* tiles, int panel_begin, int panel_end,
               float* scratch);

}  // namespace millrace::tensor
