// The product y = x W^T + bias + residual over a packed weight, vectorised, for some rows and some
// panels. It does not depend on the batch: every output is, per chain of the weight, one sequence
// of fused multiply-adds in the order of k from zero, whatever its tile. Tiles only decide which
// outputs are computed side by side.
//
// Pure functions over the caller's memory; any thread. CpuDevice splits the work.
#pragma once

#include <cstddef>

#include "tensor/cpu/packed_matrix.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr int kMaxTileRows = 14;     // rows of the widest register tile
inline constexpr int kGemmPassRows = 512;   // rows repacked at a time
inline constexpr int kGemmStripRows = 252;  // rows whose sums are kept at a time
inline constexpr int kGemmGroupPanels = 4;  // panels that share a load of x

struct GemmCall {
  Rows x;  // at most kGemmPassRows
  const CpuPackedMatrix* w = nullptr;
  Rows y;
  const float* bias = nullptr;   // null: none
  Rows residual;                 // data == nullptr: none
  const float* tiles = nullptr;  // x in the layout of RepackTile
};

// x is cut into `GemmTiles(rows)` tiles of nearly equal height; tile i starts at row rows * i /
// tiles.
int GemmTiles(int rows);

// Writes tile `i` of x as [k][rows of the tile] at tiles + (its first row) * k.
void RepackTile(Rows x, int i, float* tiles);

// Whether the vectors are wide enough to make 12-bit numbers worth widening (short_bf16.h).
bool GemmReadsShortBF16();

// Floats of scratch that one call of GemmPanels needs.
size_t GemmScratchFloats();

// Computes tiles [tile_begin, tile_end), at most kGemmStripRows rows of them, of panels
// [panel_begin, panel_end), at most kGemmGroupPanels.
void GemmPanels(const GemmCall& call, int tile_begin, int tile_end, int panel_begin, int panel_end,
                float* scratch);

}  // namespace millrace::tensor
