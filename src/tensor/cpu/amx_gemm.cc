#include "tensor/cpu/amx_gemm.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "tensor/cpu/amx.h"
#include "tensor/cpu/panel.h"

// Not by options of the compiler, which would reach functions of headers that other files share.
HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,fma")
namespace millrace::tensor {
namespace {

constexpr size_t kTileNumbers = size_t{kAmxTileRows} * kBlockK;  // of a tile of x
constexpr size_t kBlockWords = 2 * kUnitWords;                   // of a panel
// Blocks whose weights stay in L1 while all rows pass over them.
constexpr int kSegmentBlocks = 12;
constexpr size_t kSumFloats = size_t{kAmxTileRows} * kPanelWidth;  // of a tile of rows
constexpr int kSumStride = kPanelWidth * sizeof(float);
constexpr int kUnitStride = kUnitLanes * sizeof(uint32_t), kTileStride = kBlockK * sizeof(uint16_t);
// How far ahead a panel that is read once is prefetched.
constexpr size_t kFetchBytes = 8192;

int LimbRows(const GemmCall& call) { return call.limbs * call.x.rows; }

// Tiles 0 to 3 hold sums of two tiles of rows and two units, 4 and 5 rows, 6 and 7 weights.
TileShapes ShapesFor(int rows) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = static_cast<uint8_t>(i < 6 ? rows : kAmxTileRows);
  }
  return shapes;
}

// Forms with a mask, because GCC 12 warns of the others.
constexpr __mmask16 kAll = 0xffff;

// The bf16 nearest to each number, in the upper half of each word.
__m512i Rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_and_si512(_mm512_mask_mov_epi32(rounded, is_nan, quiet),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

// 16 numbers of a row, `count` of them inside a block, as limb `limb`.
void PackNumbers(const float* from, int count, int limb, uint16_t* to) {
  const auto inside = static_cast<__mmask16>((1u << std::clamp(count, 0, 16)) - 1);
  const __m512 x = _mm512_maskz_loadu_ps(inside, from);
  __m512i rounded = Rounded(x);
  if (limb == 1) rounded = Rounded(_mm512_sub_ps(x, _mm512_castsi512_ps(rounded)));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_maskz_cvtepi32_epi16(kAll, _mm512_maskz_srli_epi32(kAll, rounded, 16)));
}

// A segment of a panel times one tile of rows, or two.
struct Piece {
  const uint16_t* x[2];
  const uint32_t* units;
  int blocks;
  float* sums[2];
  bool first;            // sums start at zero
  const uint8_t* ahead;  // prefetched into L2 at the pace of the arithmetic
  size_t ahead_step;     // bytes per block
};

template <bool kTwo>
void Multiply(const Piece& piece) {
  StoresBeforeTileLoads();
  if (piece.first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, piece.sums[0], kSumStride);
    _tile_loadd(1, piece.sums[0] + kUnitLanes, kSumStride);
    if constexpr (kTwo) {
      _tile_loadd(2, piece.sums[1], kSumStride);
      _tile_loadd(3, piece.sums[1] + kUnitLanes, kSumStride);
    }
  }
  const uint8_t* ahead = piece.ahead;
  for (int i = 0; i < piece.blocks; ++i, ahead += piece.ahead_step) {
    for (size_t at = 0; at < piece.ahead_step; at += 64) __builtin_prefetch(ahead + at, 0, 2);
    const uint32_t* units = piece.units + i * kBlockWords;
    _tile_loadd(4, piece.x[0] + i * kTileNumbers, kTileStride);
    _tile_loadd(6, units, kUnitStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, units + kUnitWords, kUnitStride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, piece.x[1] + i * kTileNumbers, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, piece.sums[0], kSumStride);
  _tile_stored(1, piece.sums[0] + kUnitLanes, kSumStride);
  if constexpr (kTwo) {
    _tile_stored(2, piece.sums[1], kSumStride);
    _tile_stored(3, piece.sums[1] + kUnitLanes, kSumStride);
  }
}

// One panel times all rows.
class Panel {
 public:
  Panel(const GemmCall& call, const uint16_t* tiles, int panel, float* scratch)
      : w_(*call.w),
        tiles_(AmxTiles(call)),
        panel_(panel),
        x_(tiles),
        unpacked_(reinterpret_cast<uint32_t*>(scratch)),
        levels_(scratch + kSegmentBlocks * kBlockWords) {}

  // Returns the sums, [limb rows][32], in the scratch.
  float* Run() {
    for (int chain = 0; chain < w_.chains(); ++chain) {
      const int start = w_.PackedStart(chain), end = w_.PackedStart(chain + 1);
      int k = start;
      do {  // also once for a chain without k, which is zeros
        const int stop = std::min(end, k + kSegmentBlocks * kBlockK);
        Segment(LevelOf(chain), k, stop, k == start);
        k = stop;
      } while (k < end);
      for (int level = 0; level < LevelOf(chain); ++level) AddLevel(level, LevelOf(chain));
    }
    return Sums(LevelOf(w_.chains() - 1), 0);
  }

 private:
  // A chain joins the finished subtrees to its left: one for each trailing 1 bit of its number.
  static int LevelOf(int chain) { return std::countr_one(static_cast<unsigned>(chain)); }

  void Segment(int level, int begin, int end, bool first) {
    Piece piece{.blocks = (end - begin) / kBlockK, .first = first};
    const size_t bytes_per_k = w_.panel_bytes() / static_cast<size_t>(std::max(1, w_.packed_k()));
    const size_t bytes = static_cast<size_t>(end - begin) * bytes_per_k;
    const uint8_t* place = w_.panel(panel_) + static_cast<size_t>(begin) * bytes_per_k;
    if (w_.format() == PanelFormat::kShortBF16) {
      GemmUnpackUnits(w_, panel_, begin, end, unpacked_);
      piece.units = unpacked_;
    } else {
      piece.units = reinterpret_cast<const uint32_t*>(w_.panel(panel_)) +
                    static_cast<size_t>(begin) * kUnitLanes;
    }
    // Each pair of tiles prefetches a part of the next segment, or the only one some way ahead.
    const int pairs = (tiles_ + 1) / 2;
    piece.ahead = pairs == 1 ? place + kFetchBytes : place + bytes;
    if (piece.blocks > 0) {
      const size_t lines = (bytes + 63) / 64, parts = static_cast<size_t>(piece.blocks) * pairs;
      piece.ahead_step = (lines + parts - 1) / parts * 64;
    }
    for (int tile = 0; tile < tiles_; tile += 2) {
      const bool two = tile + 1 < tiles_;
      for (int i = 0; i < 1 + two; ++i) {
        piece.x[i] = x_ + (static_cast<size_t>(tile + i) * w_.packed_k() + begin) * kAmxTileRows;
        piece.sums[i] = Sums(level, tile + i);
      }
      if (two) {
        Multiply<true>(piece);
      } else {
        Multiply<false>(piece);
      }
      piece.ahead += piece.ahead_step * piece.blocks;
    }
  }

  void AddLevel(int from, int to) {
    const float* a = Sums(from, 0);
    float* b = Sums(to, 0);
    for (size_t i = 0; i < tiles_ * kSumFloats; i += 16) {
      _mm512_storeu_ps(b + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
    }
  }

  float* Sums(int level, int tile) const {
    return levels_ + (static_cast<size_t>(level) * tiles_ + tile) * kSumFloats;
  }

  const CpuPackedMatrix& w_;
  const int tiles_, panel_;
  const uint16_t* const x_;
  uint32_t* const unpacked_;
  float* const levels_;
};

}  // namespace

int AmxTiles(const GemmCall& call) { return (LimbRows(call) + kAmxTileRows - 1) / kAmxTileRows; }

size_t AmxTileBytes(const GemmCall& call) {
  return static_cast<size_t>(AmxTiles(call)) * call.w->packed_k() * kAmxTileRows * sizeof(uint16_t);
}

void AmxPackTile(const GemmCall& call, int i, uint16_t* tiles) {
  const CpuPackedMatrix& w = *call.w;
  uint16_t* to = tiles + static_cast<size_t>(i) * w.packed_k() * kAmxTileRows;
  const int rows = std::min(kAmxTileRows, LimbRows(call) - i * kAmxTileRows);
  for (int chain = 0; chain < w.chains(); ++chain) {
    const int end = w.ChainStart(chain + 1);
    for (int k = w.ChainStart(chain); k < end; k += kBlockK, to += kTileNumbers) {
      for (int r = 0; r < rows; ++r) {
        const int row = i * kAmxTileRows + r;
        const float* from = static_cast<const float*>(call.x.data) +
                            static_cast<size_t>(row / call.limbs) * call.x.stride + k;
        PackNumbers(from, end - k, row % call.limbs, to + r * kBlockK);
        PackNumbers(from + 16, end - k - 16, row % call.limbs, to + r * kBlockK + 16);
      }
      std::fill(to + rows * kBlockK, to + kTileNumbers, uint16_t{0});
    }
  }
}

size_t AmxScratchFloats(const GemmCall& call) {
  const size_t levels = std::bit_width(static_cast<unsigned>(call.w->chains()));
  return (call.gate ? 2 : 1) *
         (kSegmentBlocks * kBlockWords + levels * AmxTiles(call) * kSumFloats);
}

void AmxPanels(const GemmCall& call, const uint16_t* tiles, int panel_begin, int panel_end,
               float* scratch) {
  const TileShapes shapes = ShapesFor(std::min(kAmxTileRows, LimbRows(call)));
  const TileSession session(shapes);
  if (!call.gate) {
    for (int p = panel_begin; p < panel_end; ++p) {
      GemmFinishRows(call, p, Panel(call, tiles, p, scratch).Run());
    }
    return;
  }
  float* const other = scratch + AmxScratchFloats(call) / 2;
  for (int p = panel_begin; p < panel_end; p += 2) {
    float* gate = Panel(call, tiles, p, scratch).Run();
    float* up = Panel(call, tiles, p + 1, other).Run();
    GemmFinishGatedRows(call, p / 2, gate, up);
  }
}

}  // namespace millrace::tensor
HWY_POP_ATTRIBUTES

#else  // no tiles: AmxIsThere() is false, and nothing calls these

#include "base/check.h"

namespace millrace::tensor {

int AmxTiles(const GemmCall&) { return 0; }
size_t AmxTileBytes(const GemmCall&) { return 0; }
void AmxPackTile(const GemmCall&, int, uint16_t*) { MR_CHECK(false) << "no AMX"; }
size_t AmxScratchFloats(const GemmCall&) { return 0; }
void AmxPanels(const GemmCall&, const uint16_t*, int, int, float*) { MR_CHECK(false) << "no AMX"; }

}  // namespace millrace::tensor
#endif
