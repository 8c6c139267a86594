#include "tensor/cpu/amx_attention.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "tensor/cpu/amx_rows.h"
#include "tensor/cpu/kv_pool.h"
#include "tensor/cpu/panel.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,fma")
namespace millrace::tensor {
namespace {

constexpr int kKeys = 256, kBlocks = kKeys / kBlockK;                // of a partition
constexpr int kRowBytes = 64;                                        // of a tile in memory
constexpr size_t kTileNumbers = size_t{kAmxStripQueries} * kBlockK;  // of queries or weights
constexpr size_t kHalfUnit = kUnitWords;  // uint16s of 16 dimensions of a run of values
constexpr __mmask16 kAll = 0xffff;

// Keys [run * 16, + 16) of both halves of a block; zeros in keys outside [begin, end).
void StageRun(const uint16_t* run, int key, int begin, int end, uint16_t* to) {
  const int first = std::clamp(begin - key, 0, kKeyRun), stop = std::clamp(end - key, 0, kKeyRun);
  if (first >= stop) {
    std::memset(to, 0, kHalfUnit * sizeof(uint16_t));
    return;
  }
  std::memcpy(to, run, kHalfUnit * sizeof(uint16_t));
  for (int t = 0; t < kKeyRun; ++t) {
    if (t >= first && t < stop) continue;
    for (size_t j = 0; j < kUnitLanes; ++j) to[t / 2 * 2 * kUnitLanes + 2 * j + t % 2] = 0;
  }
}

}  // namespace

// Tiles 0 and 1 hold sums, 2 queries or weights, 4 and 5 keys or values. 3, 6 and 7 are those of
// queries and keys for the dimensions beyond the last whole block.
TileShapes AmxAttentionShapes(int head_dim) {
  const int rest = (head_dim % kBlockK + 1) / 2;  // pairs
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    const bool is_rest = i == 3 || i == 6 || i == 7;
    if (is_rest && rest == 0) continue;
    shapes.rows[i] = static_cast<uint8_t>(i >= 6 ? rest : 16);
    shapes.row_bytes[i] = static_cast<uint16_t>(i == 3 ? 4 * rest : kRowBytes);
  }
  return shapes;
}

void AmxPackQuery(const float* from, int head_dim, int i, uint16_t* q) {
  for (int dim = 0; dim < AmxBlockDims(head_dim); dim += kKeyRun) {
    AmxPackNumbers(
        from + dim, head_dim - dim, 0,
        q + dim / kBlockK * kTileNumbers + static_cast<size_t>(i) * kBlockK + dim % kBlockK);
  }
}

void AmxScore(const uint16_t* q, int head_dim, const uint16_t* const* runs, int first, int end,
              float* scores) {
  constexpr int kStride = kKeys * sizeof(float);
  StoresBeforeTileLoads();
  const int whole = head_dim / kBlockK;
  const bool rest = head_dim % kBlockK != 0;
  for (int run = first; run < end; run += 2) {
    const uint16_t* keys[2] = {runs[run], runs[std::min(run + 1, end - 1)]};
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < whole; ++i) {
      _tile_loadd(2, q + i * kTileNumbers, kRowBytes);
      _tile_loadd(4, keys[0] + i * 2 * kUnitWords, kRowBytes);
      _tile_loadd(5, keys[1] + i * 2 * kUnitWords, kRowBytes);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(1, 2, 5);
    }
    if (rest) {
      _tile_loadd(3, q + whole * kTileNumbers, kRowBytes);
      _tile_loadd(6, keys[0] + whole * 2 * kUnitWords, kRowBytes);
      _tile_loadd(7, keys[1] + whole * 2 * kUnitWords, kRowBytes);
      _tile_dpbf16ps(0, 3, 6);
      _tile_dpbf16ps(1, 3, 7);
    }
    _tile_stored(0, scores + run * kKeyRun, kStride);
    if (run + 1 < end) _tile_stored(1, scores + (run + 1) * kKeyRun, kStride);
  }
}

void AmxStageValues(const uint16_t* const* runs, int begin, int end, int value_dim,
                    uint16_t* values) {
  for (int group = 0; group < value_dim / static_cast<int>(kUnitLanes); ++group) {
    for (int key = begin / kBlockK * kBlockK; key < end; key += kBlockK) {
      uint16_t* to =
          values + (static_cast<size_t>(group) * kBlocks + key / kBlockK) * 2 * kHalfUnit;
      for (int half = 0; half < 2; ++half) {
        const int at = key + half * kKeyRun, run = at / kKeyRun;
        const bool there = at + kKeyRun > begin && at < end;
        const uint16_t* from = there ? runs[run] + group * kHalfUnit : nullptr;
        StageRun(from, at, begin, end, to + half * kHalfUnit);
      }
    }
  }
}

void AmxWeigh(const float* weights, const uint16_t* values, int begin, int end, int value_dim,
              uint16_t* scratch, float* sums) {
  const int first = begin / kBlockK, stop = (end + kBlockK - 1) / kBlockK;
  const int run_begin = begin / kKeyRun * kKeyRun,
            run_end = (end + kKeyRun - 1) / kKeyRun * kKeyRun;
  for (int key = first * kBlockK; key < stop * kBlockK; key += kKeyRun) {
    const __mmask16 inside = key >= run_begin && key < run_end ? kAll : 0;
    for (int r = 0; r < kAmxStripQueries; ++r) {
      const __m512i bits =
          _mm512_castps_si512(_mm512_maskz_loadu_ps(inside, weights + r * kKeys + key));
      uint16_t* to = scratch + key / kBlockK * kTileNumbers + r * kBlockK + key % kBlockK;
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(to),
          _mm512_maskz_cvtepi32_epi16(kAll, _mm512_maskz_srli_epi32(kAll, bits, 16)));
    }
  }
  StoresBeforeTileLoads();
  const int stride = value_dim * static_cast<int>(sizeof(float));
  for (int column = 0; column < value_dim; column += 2 * static_cast<int>(kUnitLanes)) {
    const uint16_t* group =
        values + static_cast<size_t>(column) / kUnitLanes * kBlocks * 2 * kHalfUnit;
    _tile_zero(0);
    _tile_zero(1);
    for (int block = first; block < stop; ++block) {
      _tile_loadd(2, scratch + block * kTileNumbers, kRowBytes);
      _tile_loadd(4, group + block * 2 * kHalfUnit, kRowBytes);
      _tile_loadd(5, group + (kBlocks + block) * 2 * kHalfUnit, kRowBytes);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(1, 2, 5);
    }
    _tile_stored(0, sums + column, stride);
    _tile_stored(1, sums + column + kUnitLanes, stride);
  }
}

}  // namespace millrace::tensor
HWY_POP_ATTRIBUTES

#else  // no tiles: AmxIsThere() is false, and nothing calls these

namespace millrace::tensor {

TileShapes AmxAttentionShapes(int) { return {}; }
void AmxPackQuery(const float*, int, int, uint16_t*) {}
void AmxScore(const uint16_t*, int, const uint16_t* const*, int, int, float*) {}
void AmxStageValues(const uint16_t* const*, int, int, int, uint16_t*) {}
void AmxWeigh(const float*, const uint16_t*, int, int, int, uint16_t*, float*) {}

}  // namespace millrace::tensor
#endif
