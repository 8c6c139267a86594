// The two products of attention.h over a bf16 pool on AMX's tiles, for strips of 16 queries and one
// partition of keys. The bits are those of attention-inl.h.
//
// Pure functions over the caller's memory; any thread, in a TileSession with AmxAttentionShapes.
// REQUIRES: as in amx_gemm.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/amx.h"

namespace millrace::tensor {

inline constexpr int kAmxStripQueries = 16;

// Of a head: dimensions padded to blocks of 32 for the scores.
constexpr int AmxBlockDims(int head_dim) { return (head_dim + 31) / 32 * 32; }

TileShapes AmxAttentionShapes(int head_dim);

// Writes query `i` of a strip, rounded: q is [AmxBlockDims / 32][16][32].
void AmxPackQuery(const float* from, int head_dim, int i, uint16_t* q);

// scores[16][256] of runs [first, end) of 16 keys.
void AmxScore(const uint16_t* q, int head_dim, const uint16_t* const* runs, int first, int end,
              float* scores);

// Writes keys [begin, end) of a partition's values as [value_dim / 16][8][16 pairs][16 words],
// where AmxWeigh reads them; zeros for the other keys of their blocks.
void AmxStageValues(const uint16_t* const* runs, int begin, int end, int value_dim,
                    uint16_t* values);

// sums[16][value_dim] = weights[16][256] times the staged values of keys [begin, end). The weights
// are rounded to bf16 already; only those of whole runs are read.
void AmxWeigh(const float* weights, const uint16_t* values, int begin, int end, int value_dim,
              uint16_t* scratch, float* sums);

// uint16s of AmxStageValues and of the scratch.
constexpr size_t AmxStagedNumbers(int value_dim) { return static_cast<size_t>(value_dim) * 256; }
inline constexpr size_t kAmxWeightNumbers = size_t{kAmxStripQueries} * 256;

}  // namespace millrace::tensor
