#include "tensor/cpu/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/gemm.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "tensor/cpu/finish-inl.h"
#include "tensor/cpu/multiply-inl.h"
#include "tensor/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {

// Values of k of a panel that are widened at a time: with the same k of a tile they fit in L1.
constexpr int kSegment = 192;
// A subtree of the pairwise sum can be pending at each level; kVirtualShards = 2^3 chains need 4
// places.
constexpr int kLevels = std::bit_width(unsigned{kVirtualShards});
// Prefetch distance of a stream: some 250 ns at the bandwidth of one core.
constexpr size_t kFetchBytes = 8192;

constexpr size_t kWideFloats = size_t{kSegment} * kPanelWidth;
constexpr size_t kLevelFloats = size_t{kGemmGroupPanels} * kGemmStripRows * kPanelWidth;

static_assert(kTileRows % 2 == 0);  // a row's limbs are in one tile
int Tiles(int rows, int limbs) { return (rows * limbs + kTileRows - 1) / kTileRows; }

int PartStart(int count, int parts, int i) { return static_cast<int>(int64_t{count} * i / parts); }

// Rounds factors to bf16, to the nearest even.
void RoundToBF16(float* x, size_t count) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::BitCast(d, StoredBF16::Rounded(hn::LoadU(d, x + i))), d, x + i);
  }
  for (; i < count; ++i) x[i] = FloatFromBF16(BF16FactorOf(x[i]));
}

// Makes a column's `rows` numbers twice as many: each rounded, then what is missing to it, rounded.
void SplitLimbs(float* column, int rows) {
  for (int r = rows - 1; r >= 0; --r) {
    const float x = column[r], high = FloatFromBF16(BF16FactorOf(x));
    column[2 * r + 1] = FloatFromBF16(BF16FactorOf(x - high));
    column[2 * r] = high;
  }
}

// Few enough columns of a tile to keep them in L1.
constexpr int kColumns = 256;

// `columns` numbers of `count` rows, as [count][kColumns].
void WidenRows(const uint16_t* from, size_t stride, int count, int columns, float* to) {
  for (int r = 0; r < count; ++r, from += stride, to += kColumns) {
    for (int i = 0; i < columns; ++i) to[i] = FloatFromBF16(from[i]);
  }
}

void Repack(const GemmCall& call, int tile, float* tiles) {
  const CpuPackedMatrix& w = *call.w;
  const Rows& x = call.x;
  const int count = Tiles(x.rows, call.limbs);
  const int first = PartStart(x.rows, count, tile);
  const int rows = PartStart(x.rows, count, tile + 1) - first, height = call.limbs * rows;
  const size_t from = static_cast<size_t>(first) * x.stride;
  float wide[kTileRows * kColumns];
  float* const whole = tiles + static_cast<size_t>(call.limbs * first) * w.packed_k();
  for (int chain = 0; chain < w.chains(); ++chain) {
    const int end = w.ChainStart(chain + 1);
    float* to = whole + static_cast<size_t>(w.PackedStart(chain)) * height;
    for (int i = w.ChainStart(chain); i < end; i += kColumns) {
      const int columns = std::min(kColumns, end - i);
      if (x.type == DType::kBF16) {
        WidenRows(static_cast<const uint16_t*>(x.data) + from + i, x.stride, rows, columns, wide);
        Transpose(wide, kColumns, rows, columns, to, height);
      } else {
        Transpose(static_cast<const float*>(x.data) + from + i, x.stride, rows, columns, to,
                  height);
      }
      if (call.limbs == 2) {
        for (int c = 0; c < columns; ++c) SplitLimbs(to + c * height, rows);
      } else if (w.in_blocks()) {
        RoundToBF16(to, static_cast<size_t>(columns) * height);
      }
      to += static_cast<size_t>(columns) * height;
    }
    std::fill(to, whole + static_cast<size_t>(w.PackedStart(chain + 1)) * height, 0.0f);
  }
}

// One group of panels times one strip of tiles: the state of a GemmPanels call.
class Group {
 public:
  Group(const GemmCall& call, int tile_begin, int tile_end, int panel_begin, int panel_end,
        float* scratch)
      : call_(call),
        w_(*call.w),
        tiles_(Tiles(call.x.rows, call.limbs)),
        tile_begin_(tile_begin),
        tile_end_(tile_end),
        panel_begin_(panel_begin),
        panels_(panel_end - panel_begin),
        strip_(Start(tile_begin)),
        wide_(scratch),
        levels_(scratch + kWideFloats) {}

  // One tile: the panel is read once and prefetched some way ahead.
  template <class Packs>
  void RunSingleTile() {
    const Kernel kernel = KernelFor<Packs, Mode::kStream>(Height(tile_begin_));
    for (int p = 0; p < panels_; ++p) {
      for (int chain = 0; chain < w_.chains(); ++chain) {
        const int start = w_.PackedStart(chain), end = w_.PackedStart(chain + 1);
        const PackPlace b = PlaceOf<Packs>(p, start);
        kernel({.a = TileAt(tile_begin_, start),
                .b = b,
                .k = end - start,
                .out = Sums(LevelOf(chain), p, tile_begin_),
                .ahead = b.b + kFetchBytes,
                .ahead_step = Packs::kBytes});
        AddFinishedLevels(chain, p, tile_begin_);
      }
    }
    for (int p = 0; p < panels_; ++p) Finish(p, tile_begin_);
  }

  // Several tiles: the first widens each segment of a panel for the others to read.
  template <class Packs>
  void RunTiles() {
    for (int chain = 0; chain < w_.chains(); ++chain) {
      constexpr int kUnit = Packs::kInBlocks ? kBlockK : 1;  // a piece has whole ones
      const int start = w_.PackedStart(chain), end = w_.PackedStart(chain + 1);
      const int pieces = std::max(1, (end - start + kSegment - 1) / kSegment);  // empty: zeros
      for (int i = 0; i < pieces; ++i) {
        const int units = (end - start) / kUnit;
        const int begin = PartStart(units, pieces, i) * kUnit + start;
        const int stop = PartStart(units, pieces, i + 1) * kUnit + start;
        for (int p = 0; p < panels_; ++p) MultiplySegment<Packs>(chain, begin, stop, p);
      }
      ForEachTile([&](int p, int tile) { AddFinishedLevels(chain, p, tile); });
    }
    ForEachTile([&](int p, int tile) { Finish(p, tile); });
  }

 private:
  template <class Packs>
  void MultiplySegment(int chain, int begin, int end, int p) {
    KernelArgs args{.b = PlaceOf<Packs>(p, begin), .k = end - begin, .wide = wide_};
    // The first tiles prefetch what follows this segment, a part each.
    const int fetchers = tile_end_ - tile_begin_ < 4 ? 2 : 4;
    args.ahead = (p + 1 < panels_ ? PlaceOf<Packs>(p + 1, begin) : PlaceOf<Packs>(0, end)).b;
    args.ahead_step = Packs::kBytes / fetchers;
    using Wide = typename Packs::Wide;
    for (int tile = tile_begin_; tile < tile_end_; ++tile) {
      args.a = TileAt(tile, begin);
      args.out = Sums(LevelOf(chain), p, tile);
      args.carry = begin == w_.PackedStart(chain) ? nullptr : args.out;
      if (!Packs::kIsWide && tile == tile_begin_) {
        KernelFor<Packs, Mode::kWiden>(Height(tile))(args);
        args.b = {.b = reinterpret_cast<const uint8_t*>(wide_)};
      } else if (tile < tile_begin_ + fetchers) {
        KernelFor<Wide, Mode::kFetch>(Height(tile))(args);
      } else {
        KernelFor<Wide, Mode::kPlain>(Height(tile))(args);
      }
      args.ahead += args.ahead_step * args.k;
    }
  }

  template <typename Visit>
  void ForEachTile(Visit visit) {
    for (int tile = tile_begin_; tile < tile_end_; ++tile) {
      for (int p = 0; p < panels_; ++p) visit(p, tile);
    }
  }

  // A chain joins the finished subtrees to its left: one for each trailing 1 bit of its number.
  static int LevelOf(int chain) { return std::countr_one(static_cast<unsigned>(chain)); }

  void AddFinishedLevels(int chain, int p, int tile) {
    float* sums = Sums(LevelOf(chain), p, tile);
    for (int level = 0; level < LevelOf(chain); ++level) {
      AddTile(Sums(level, p, tile), sums, Height(tile) * kPack);
    }
  }

  void Finish(int p, int tile) {
    const int first = PartStart(call_.x.rows, tiles_, tile), count = Height(tile) / call_.limbs;
    const int level = LevelOf(w_.chains() - 1);
    if (!call_.gate) {
      FinishRows(call_, first, count, panel_begin_ + p, Sums(level, p, tile));
    } else if (p % 2 == 1) {
      FinishGatedRows(call_, first, count, (panel_begin_ + p) / 2, Sums(level, p - 1, tile),
                      Sums(level, p, tile));
    }
  }

  // The tile's first row, of limbs.
  int Start(int tile) const { return call_.limbs * PartStart(call_.x.rows, tiles_, tile); }
  int Height(int tile) const { return Start(tile + 1) - Start(tile); }
  const float* TileAt(int tile, int k) const {
    return call_.tiles + static_cast<size_t>(Start(tile)) * w_.packed_k() +
           static_cast<size_t>(Height(tile)) * k;
  }
  template <class Packs>
  PackPlace PlaceOf(int p, int k) const {
    return Packs::At(w_, panel_begin_ + p, k);
  }
  float* Sums(int level, int p, int tile) const {
    const int row = Start(tile) - strip_;
    return levels_ + level * kLevelFloats + (size_t{kGemmStripRows} * p + row) * kPack;
  }

  const GemmCall& call_;
  const CpuPackedMatrix& w_;
  const int tiles_, tile_begin_, tile_end_, panel_begin_, panels_;
  const int strip_;  // first row of the strip
  float* const wide_;
  float* const levels_;
};

void Panels(const GemmCall& call, int tile_begin, int tile_end, int panel_begin, int panel_end,
            float* scratch) {
  Group group(call, tile_begin, tile_end, panel_begin, panel_end, scratch);
  WithPacks(call.w->format(), [&](auto packs) {
    using Packs = typename decltype(packs)::type;
    if (tile_end - tile_begin == 1) {
      group.template RunSingleTile<Packs>();
    } else {
      group.template RunTiles<Packs>();
    }
  });
}

bool ReadsShort() { return kReadsShort; }

size_t ScratchFloats() { return kWideFloats + kLevels * kLevelFloats; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(Tiles);
HWY_EXPORT(Repack);
HWY_EXPORT(Panels);
HWY_EXPORT(FinishRows);
HWY_EXPORT(FinishGatedRows);
HWY_EXPORT(ReadsShort);
HWY_EXPORT(ScratchFloats);

int GemmTiles(int rows, int limbs) { return HWY_DYNAMIC_DISPATCH(Tiles)(rows, limbs); }

void RepackTile(const GemmCall& call, int i, float* tiles) {
  HWY_DYNAMIC_DISPATCH(Repack)(call, i, tiles);
}

void GemmFinishRows(const GemmCall& call, int first, int rows, int panel, float* sums) {
  HWY_DYNAMIC_DISPATCH(FinishRows)(call, first, rows, panel, sums);
}

void GemmFinishGatedRows(const GemmCall& call, int first, int rows, int panel, float* gate,
                         float* up) {
  HWY_DYNAMIC_DISPATCH(FinishGatedRows)(call, first, rows, panel, gate, up);
}

bool GemmReadsShortBF16() { return HWY_DYNAMIC_DISPATCH(ReadsShort)(); }

size_t GemmScratchFloats() { return HWY_DYNAMIC_DISPATCH(ScratchFloats)(); }

void GemmPanels(const GemmCall& call, int tile_begin, int tile_end, int panel_begin, int panel_end,
                float* scratch) {
  HWY_DYNAMIC_DISPATCH(Panels)(call, tile_begin, tile_end, panel_begin, panel_end, scratch);
}

}  // namespace millrace::tensor
#endif
