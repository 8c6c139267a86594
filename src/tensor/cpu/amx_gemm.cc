#include "tensor/cpu/amx_gemm.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "tensor/cpu/amx.h"
#include "tensor/cpu/panel.h"
#include "tensor/cpu/short_blocks-inl.h"

// Not by options of the compiler, which would reach functions of headers that other files share.
HWY_PUSH_ATTRIBUTES(
    "amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,fma")
namespace millrace::tensor {
namespace {

constexpr size_t kBlockWords = 2 * kUnitWords;  // of a panel
// Rows that stay in L2 anyway. Panels of more are taken in groups: a segment of rows stays there
// while all of the group pass, with the group's sums.
constexpr size_t kRowsInL2 = size_t{1} << 20, kSumsInL2 = size_t{1} << 20;
constexpr int kMaxGroupPanels = 8;
// Pairs of tiles that share the prefetching of what comes next.
constexpr int kFetchers = 8;
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

// Where units come from: they are there; they are unpacked, each while the one before is
// multiplied; or the same, into two places in turn, because nobody else reads them.
enum class Units { kThere, kUnpacked, kPassing };

// A segment of a panel times one tile of rows, or two.
struct Piece {
  const uint16_t* x[2];
  uint32_t* units;
  int blocks;
  float* sums[2];
  bool first;  // sums start at zero
  // Weights and rows that are prefetched into L2 at the pace of the arithmetic.
  const uint8_t* ahead;
  size_t ahead_step;  // bytes per block
  const uint8_t* x_ahead;
  size_t x_ahead_step;
};

template <bool kTwo>
void LoadSums(const Piece& piece) {
  if (piece.first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
    return;
  }
  StoresBeforeTileLoads();
  _tile_loadd(0, piece.sums[0], kSumStride);
  _tile_loadd(1, piece.sums[0] + kUnitLanes, kSumStride);
  if constexpr (kTwo) {
    _tile_loadd(2, piece.sums[1], kSumStride);
    _tile_loadd(3, piece.sums[1] + kUnitLanes, kSumStride);
  }
}

template <bool kTwo>
void StoreSums(const Piece& piece) {
  _tile_stored(0, piece.sums[0], kSumStride);
  _tile_stored(1, piece.sums[0] + kUnitLanes, kSumStride);
  if constexpr (kTwo) {
    _tile_stored(2, piece.sums[1], kSumStride);
    _tile_stored(3, piece.sums[1] + kUnitLanes, kSumStride);
  }
}

void Fetch(const uint8_t* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// `unpacks` is at the segment's first block, and null where the units are there.
template <bool kTwo, Units kUnits>
void Multiply(const Piece& piece, ShortBlocks* unpacks) {
  constexpr size_t kPlaces = kUnits == Units::kPassing ? 2 : std::numeric_limits<size_t>::max();
  const auto units_of = [&](size_t i) { return piece.units + i % kPlaces * kBlockWords; };
  const auto unpack = [&](size_t i) {
    if constexpr (kUnits != Units::kThere) {
      unpacks->Next<kUnits == Units::kPassing>(units_of(i));
    }
  };
  LoadSums<kTwo>(piece);
  const auto blocks = static_cast<size_t>(piece.blocks);
  if (blocks > 0) unpack(0);
  for (size_t i = 0; i < blocks; ++i) {
    Fetch(piece.ahead + i * piece.ahead_step, piece.ahead_step);
    Fetch(piece.x_ahead + i * piece.x_ahead_step, piece.x_ahead_step);
    if (i + 1 < blocks) unpack(i + 1);
    StoresBeforeTileLoads();
    const uint32_t* units = units_of(i);
    _tile_loadd(4, piece.x[0] + i * kAmxTileNumbers, kTileStride);
    _tile_loadd(6, units, kUnitStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, units + kUnitWords, kUnitStride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, piece.x[1] + i * kAmxTileNumbers, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  StoreSums<kTwo>(piece);
}

template <bool kTwo>
void Multiply(const Piece& piece, Units units, ShortBlocks* unpacks) {
  switch (units) {
    case Units::kThere: return Multiply<kTwo, Units::kThere>(piece, unpacks);
    case Units::kUnpacked: return Multiply<kTwo, Units::kUnpacked>(piece, unpacks);
    case Units::kPassing: return Multiply<kTwo, Units::kPassing>(piece, unpacks);
  }
}

// Two panels of short bf16 side by side, read front to back: memory gives more in two streams.
// Each block is unpacked while the one before is multiplied.
class TwoPanels {
 public:
  // `units`: room for four blocks.
  TwoPanels(const CpuPackedMatrix& w, int panel, uint32_t* units)
      : left_(w, panel, 0, panel + 2),
        right_(w, panel + 1, 0, panel + 3),
        units_(units),
        end_(w.packed_k() / kBlockK) {
    if (end_ > 0) Unpack(0);
  }

  // The next `blocks` times one tile of rows.
  void Multiply(const uint16_t* x, int blocks, float* const sums[2]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < blocks; ++i, ++next_) {
      if (next_ + 1 < end_) Unpack(next_ + 1);
      StoresBeforeTileLoads();
      const uint32_t* units = UnitsOf(next_);
      _tile_loadd(4, x + i * kAmxTileNumbers, kTileStride);
      _tile_loadd(6, units, kUnitStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, units + kUnitWords, kUnitStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(6, units + 2 * kUnitWords, kUnitStride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, units + 3 * kUnitWords, kUnitStride);
      _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, sums[0], kSumStride);
    _tile_stored(1, sums[0] + kUnitLanes, kSumStride);
    _tile_stored(2, sums[1], kSumStride);
    _tile_stored(3, sums[1] + kUnitLanes, kSumStride);
  }

 private:
  uint32_t* UnitsOf(int block) const { return units_ + block % 2 * 2 * kBlockWords; }
  void Unpack(int block) {
    left_.Next<true>(UnitsOf(block));
    right_.Next<true>(UnitsOf(block) + kBlockWords);
  }

  ShortBlocks left_, right_;
  uint32_t* const units_;
  int next_ = 0;
  const int end_;
};

// A group of panels times all rows. Segments of all panels come before the next segment, so that
// its rows stay in L2; a segment's weights stay in L1 while all rows pass.
class Group {
 public:
  Group(const GemmCall& call, const uint16_t* tiles, int panel_begin, int panel_end, float* scratch)
      : call_(call),
        w_(*call.w),
        tiles_(AmxTiles(call)),
        panel_begin_(panel_begin),
        panels_(panel_end - panel_begin),
        x_(tiles),
        unpacked_(reinterpret_cast<uint32_t*>(scratch)),
        levels_(scratch + kAmxSegmentBlocks * kBlockWords) {}

  void Run() {
    int first = 0;
    if (tiles_ == 1 && is_short()) {
      for (; first + 2 <= panels_; first += 2) MultiplyTwo(first);
    }
    ForEachAmxSegment(call_, [&](const AmxSegment& segment) {
      for (int p = first; p < panels_; ++p) Multiply(segment, p);
    });
  }

 private:
  // A chain joins the finished subtrees to its left: one for each trailing 1 bit of its number.
  static int LevelOf(int chain) { return std::countr_one(static_cast<unsigned>(chain)); }
  int pairs() const { return (tiles_ + 1) / 2; }
  bool is_short() const { return w_.format() == PanelFormat::kShortBF16; }
  size_t block_bytes() const {
    return (is_short() ? 2 * kUnitPairs / kShortGroup * kShortGroupWords : kBlockWords) *
           sizeof(uint32_t);
  }
  const uint8_t* PlaceOf(int p, int block) const {
    const size_t bases = is_short() ? kShortBases * sizeof(uint32_t) : 0;
    return w_.panel(panel_begin_ + p) + bases + static_cast<size_t>(block) * block_bytes();
  }

  void Multiply(const AmxSegment& segment, int p) {
    std::optional<ShortBlocks> unpacks;
    Piece piece{.blocks = segment.blocks(), .first = segment.first};
    Units units = Units::kThere;
    if (is_short()) {
      units = pairs() == 1 ? Units::kPassing : Units::kUnpacked;
      unpacks.emplace(w_, panel_begin_ + p, segment.begin * kBlockK, panel_begin_ + p + 1);
      piece.units = unpacked_;
    } else {
      auto* panel = reinterpret_cast<const uint32_t*>(w_.panel(panel_begin_ + p));
      piece.units = const_cast<uint32_t*>(panel) + segment.begin * kBlockWords;
    }
    // The first pairs of tiles prefetch the next segment, a part each; the only one prefetches its
    // own some way ahead.
    int fetchers = std::min(pairs(), kFetchers);
    piece.ahead = pairs() == 1      ? PlaceOf(p, segment.begin) + kFetchBytes
                  : p + 1 < panels_ ? PlaceOf(p + 1, segment.begin)
                                    : PlaceOf(0, segment.end);
    piece.ahead_step = units == Units::kPassing ? 0 : block_bytes() / fetchers;
    if (AmxTileBytes(call_) > kRowsInL2) {  // each panel a part of the next segment's rows
      const size_t next = static_cast<size_t>(segment.end) * static_cast<size_t>(tiles_);
      piece.x_ahead_step = 2 * kAmxTileNumbers * sizeof(uint16_t) / static_cast<size_t>(panels_);
      piece.x_ahead = reinterpret_cast<const uint8_t*>(x_ + next * kAmxTileNumbers) +
                      static_cast<size_t>(p * pairs() * piece.blocks) * piece.x_ahead_step;
    }
    for (int tile = 0; tile < tiles_; tile += 2) {
      const bool two = tile + 1 < tiles_;
      for (int i = 0; i < 1 + two; ++i) {
        piece.x[i] = x_ + AmxTileAt(call_, segment, tile + i);
        piece.sums[i] = Sums(LevelOf(segment.chain), p, tile + i);
      }
      ShortBlocks* unpack = unpacks ? &*unpacks : nullptr;
      two ? tensor::Multiply<true>(piece, units, unpack)
          : tensor::Multiply<false>(piece, units, unpack);
      units = Units::kThere;
      if (segment.last) EndChain(segment.chain, p, tile, 1 + two);
      piece.ahead += piece.ahead_step * piece.blocks;
      piece.x_ahead += piece.x_ahead_step * piece.blocks;
      if (--fetchers == 0) piece.ahead_step = 0;
    }
  }

  // Panels p and p + 1.
  void MultiplyTwo(int p) {
    TwoPanels two(w_, panel_begin_ + p, unpacked_);
    for (int chain = 0; chain < w_.chains(); ++chain) {
      const int begin = w_.PackedStart(chain) / kBlockK, end = w_.PackedStart(chain + 1) / kBlockK;
      float* const sums[] = {Sums(LevelOf(chain), p, 0), Sums(LevelOf(chain), p + 1, 0)};
      two.Multiply(x_ + begin * kAmxTileNumbers, end - begin, sums);
      EndChain(chain, p, 0, 1);
      EndChain(chain, p + 1, 0, 1);
    }
  }

  // While the sums of `count` tiles are in L1.
  void EndChain(int chain, int p, int tile, int count) {
    const int level = LevelOf(chain);
    float* sums = Sums(level, p, tile);
    for (int from = 0; from < level; ++from) {
      const float* left = Sums(from, p, tile);
      for (size_t i = 0; i < count * kSumFloats; i += 16) {
        _mm512_storeu_ps(sums + i,
                         _mm512_add_ps(_mm512_loadu_ps(left + i), _mm512_loadu_ps(sums + i)));
      }
    }
    if (chain + 1 < w_.chains()) return;
    const int first = tile * kAmxTileRows / call_.limbs;
    const int rows = std::min(call_.x.rows - first, count * kAmxTileRows / call_.limbs);
    const int panel = panel_begin_ + p;
    if (!call_.gate) {
      GemmFinishRows(call_, first, rows, panel, sums);
    } else if (p % 2 == 1) {
      GemmFinishGatedRows(call_, first, rows, panel / 2, Sums(level, p - 1, tile), sums);
    }
  }

  float* Sums(int level, int p, int tile) const {
    return levels_ +
           ((static_cast<size_t>(level) * panels_ + p) * tiles_ + static_cast<size_t>(tile)) *
               kSumFloats;
  }

  const GemmCall& call_;
  const CpuPackedMatrix& w_;
  const int tiles_, panel_begin_, panels_;
  const uint16_t* const x_;
  uint32_t* const unpacked_;
  float* const levels_;
};

size_t LevelsOf(const GemmCall& call) {
  return std::bit_width(static_cast<unsigned>(call.w->chains()));
}

}  // namespace

int AmxGroupPanels(const GemmCall& call) {
  const size_t panel = LevelsOf(call) * static_cast<size_t>(AmxTiles(call)) * kSumFloats;
  const int most = static_cast<int>(kSumsInL2 / sizeof(float) / std::max<size_t>(1, panel));
  const int unit = call.gate ? 2 : 1;
  const int wanted = AmxTileBytes(call) <= kRowsInL2 ? 2 : kMaxGroupPanels;
  return std::clamp(std::min(most, wanted) / unit * unit, unit, kMaxGroupPanels);
}

size_t AmxScratchFloats(const GemmCall& call) {
  return kAmxSegmentBlocks * kBlockWords +
         static_cast<size_t>(AmxGroupPanels(call)) * LevelsOf(call) * AmxTiles(call) * kSumFloats;
}

void AmxPanels(const GemmCall& call, const uint16_t* tiles, int panel_begin, int panel_end,
               float* scratch) {
  const TileShapes shapes = ShapesFor(std::min(kAmxTileRows, LimbRows(call)));
  const TileSession session(shapes);
  const int step = AmxTiles(call) <= 2 ? 2 : panel_end - panel_begin;
  for (int p = panel_begin; p < panel_end; p += step) {
    Group(call, tiles, p, std::min(panel_end, p + step), scratch).Run();
  }
}

}  // namespace millrace::tensor
HWY_POP_ATTRIBUTES

#else  // no tiles: AmxIsThere() is false, and nothing calls these

#include "base/check.h"

namespace millrace::tensor {

int AmxGroupPanels(const GemmCall&) { return 1; }
size_t AmxScratchFloats(const GemmCall&) { return 0; }
void AmxPanels(const GemmCall&, const uint16_t*, int, int, float*) { MR_CHECK(false) << "no AMX"; }

}  // namespace millrace::tensor
#endif
