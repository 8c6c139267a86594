// The product y = x W^T + bias + residual over a packed weight, vectorised, for some rows and some
// panels. It does not depend on the batch: every output is, per chain of the weight, the same
// operations in the same order, whatever its tile. Tiles only decide which outputs are computed
// side by side.
//
// With f32 and f16 weights a chain is one sequence of fused multiply-adds over k from zero. With
// bf16 weights it is what AMX's TDPBF16PS computes: x is rounded to bf16; for each block of 32 k,
// the even k and the odd k are such sequences, whose sum is added to the chain. With two limbs, the
// same with x - rounded(x) is added to the finished sum: a row of x is two rows of the product.
//
// Pure functions over the caller's memory; any thread. ProductRunner splits the work.
#pragma once

#include <cstddef>
#include <optional>

#include "tensor/cpu/packed_matrix.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr int kMaxTileRows = 14;     // rows of the widest register tile
inline constexpr int kGemmPassRows = 512;   // rows repacked at a time
inline constexpr int kGemmStripRows = 266;  // rows whose sums are kept at a time
inline constexpr int kGemmGroupPanels = 4;  // panels that share a load of x

struct GemmCall {
  Rows x;  // at most kGemmPassRows, f32; in blocks with one limb also bf16
  const CpuPackedMatrix* w = nullptr;
  int limbs = 1;                 // 2 only in blocks
  Rows y;                        // f32; with gates also bf16
  const float* bias = nullptr;   // null: none
  Rows residual;                 // data == nullptr: none
  const float* tiles = nullptr;  // x in the layout of RepackTile
  // Set: y = f(gates) * what they gate, half as many columns. The weight alternates; no residual.
  std::optional<Activation> gate;
};

// x is cut into this many register tiles, of nearly equal height; tile i starts at row
// rows * i / tiles.
int GemmTiles(int rows, int limbs);

// Writes tile `i` of x as [packed_k][limbs * its rows] at tiles + limbs * (its first row) *
// packed_k, rounded and filled up as the weight wants it; a row's limbs are neighbours.
void RepackTile(const GemmCall& call, int i, float* tiles);

// Whether the vectors are wide enough to make 12-bit numbers worth widening (short_bf16.h).
bool GemmReadsShortBF16();

// Floats of scratch that one call of GemmPanels needs.
size_t GemmScratchFloats();

// Computes tiles [tile_begin, tile_end), at most kGemmStripRows rows of them, of panels
// [panel_begin, panel_end), at most kGemmGroupPanels; with gates, pairs of them.
void GemmPanels(const GemmCall& call, int tile_begin, int tile_end, int panel_begin, int panel_end,
                float* scratch);

// The end of a product on other hardware. `sums`: [limbs * rows][32] of a panel for rows [first,
// first + rows) of x, which become y.
void GemmFinishRows(const GemmCall& call, int first, int rows, int panel, float* sums);
// The same from the sums of a panel of gates and of what they gate.
void GemmFinishGatedRows(const GemmCall& call, int first, int rows, int panel, float* gate,
                         float* up);

}  // namespace millrace::tensor
