#include "tensor/cpu/product.h"

#include <algorithm>

#include "tensor/cpu/amx_gemm.h"
#include "tensor/cpu/cpu_objects.h"
#include "tensor/cpu/elementwise.h"
#include "tensor/cpu/for_rows.h"

namespace millrace::tensor {
namespace {

constexpr int kStripBytes = 1 << 20;
constexpr int kMinStripTiles = 6;

// y = norm(x), on the caller's thread.
void Norm(Rows x, const NormSpec& norm, Rows y) {
  const float* weight = DataOf(*norm.weight, x.cols);
  if (norm.kind == NormKind::kRms) return RmsNormRows(x, weight, norm.epsilon, y);
  const float* bias = norm.bias == nullptr ? nullptr : DataOf(*norm.bias, x.cols);
  LayerNormRows(x, weight, bias, norm.epsilon, y);
}

}  // namespace

void NormRows(ThreadPool& pool, Rows x, const NormSpec& norm, Rows y) {
  CheckSameShape(x, y);
  ForRows(pool, x,
          [&](int first, int count) { Norm(x.Slice(first, count), norm, y.Slice(first, count)); });
}

void ProductRunner::Run(const Factor& factor, const PackedMatrix& w, Rows y,
                        const MatMulExtras& extras, std::optional<Activation> gate) {
  const Rows& x = factor.x;
  MR_CHECK(x.rows == y.rows && x.cols == w.k() && (gate ? 2 : 1) * y.cols == w.n())
      << "[" << x.rows << ", " << x.cols << "] times [" << w.n() << ", " << w.k() << "] into ["
      << y.rows << ", " << y.cols << "]";
  MR_CHECK(x.type == DType::kF32 || (x.type == w.input() && factor.norm == nullptr))
      << DTypeName(x.type);
  MR_CHECK(y.type == DType::kF32 || (y.type == block_input() && gate)) << DTypeName(y.type);
  if (factor.norm != nullptr) CheckSameShape(x, factor.normed);
  if (extras.residual.data != nullptr) CheckSameShape(extras.residual, y);
  for (int first = 0; first < x.rows; first += kGemmPassRows) {
    const int count = std::min(kGemmPassRows, x.rows - first);
    GemmCall call{.x = x.Slice(first, count),
                  .w = static_cast<const CpuPackedMatrix*>(&w),
                  .y = y.Slice(first, count),
                  .gate = gate};
    call.limbs = call.w->in_blocks() ? limbs_ : 1;
    if (extras.bias != nullptr) call.bias = DataOf(*extras.bias, w.n());
    if (extras.residual.data != nullptr) call.residual = extras.residual.Slice(first, count);
    const bool on_tiles = on_tiles_ && call.w->in_blocks() && call.limbs * count >= kAmxFewestRows;
    if (on_tiles) {
      OnTiles(call, factor.norm);
      continue;
    }
    if (factor.norm != nullptr) {
      const Rows normed = factor.normed.Slice(first, count);
      NormRows(pool_, call.x, *factor.norm, normed);
      call.x = normed;
    }
    MultiplyAdd(call);
  }
}

void ProductRunner::MultiplyAdd(GemmCall call) {
  const CpuPackedMatrix& w = *call.w;
  const int tiles = GemmTiles(call.x.rows, call.limbs);
  if (call.x.rows == 1 && !w.in_blocks()) {
    call.tiles = static_cast<const float*>(call.x.data);  // already what the kernel reads
  } else {
    float* repacked = scratch_.Shared(SaturatingProduct(call.limbs * call.x.rows, w.packed_k()));
    call.tiles = repacked;
    const bool parallel = IsWorthDividing(call.x);
    pool_.ParallelFor(tiles, parallel ? 1 : tiles, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) RepackTile(call, i, repacked);
    });
  }
  scratch_.ReservePerThread(GemmScratchFloats());
  const int panels = w.panels();
  // Panels that a thread takes at a time.
  int group = std::clamp(panels / (4 * pool_.threads()), 1, kGemmGroupPanels);
  if (call.gate) group = std::max(2, group / 2 * 2);
  const int groups = (panels + group - 1) / group;
  // A strip of x that stays in L2 while all panels are read, unless it would be too thin.
  const int strip_tiles =
      std::clamp(kStripBytes / (static_cast<int>(sizeof(float)) * kMaxTileRows * call.x.cols),
                 kMinStripTiles, kGemmStripRows / kMaxTileRows);
  const int strips = (tiles + strip_tiles - 1) / strip_tiles;
  pool_.ParallelFor(strips * groups, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const int strip = i / groups, first_panel = i % groups * group;
      GemmPanels(call, tiles * strip / strips, tiles * (strip + 1) / strips, first_panel,
                 std::min(first_panel + group, panels), scratch_.OfThread(thread));
    }
  });
}

void ProductRunner::OnTiles(const GemmCall& call, const NormSpec* norm) {
  auto* tiles = reinterpret_cast<uint16_t*>(scratch_.Shared(AmxTileBytes(call) / sizeof(float)));
  const bool parallel = IsWorthDividing(call.x);
  const int count = AmxTiles(call), tile_rows = kAmxTileRows / call.limbs;
  scratch_.ReservePerThread(std::max(
      AmxScratchFloats(call), norm == nullptr ? 0 : SaturatingProduct(tile_rows, call.x.cols)));
  pool_.ParallelFor(count, parallel ? 1 : count, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const int first = i * tile_rows;
      Rows x = call.x.Slice(first, std::min(tile_rows, call.x.rows - first));
      if (norm != nullptr) {
        const Rows normed{scratch_.OfThread(thread), x.rows, x.cols, x.cols};
        Norm(x, *norm, normed);
        x = normed;
      }
      AmxPackTile(call, x, i, tiles);
    }
  });
  // Equal groups, as many for each thread.
  const int unit = call.gate ? 2 : 1, units = call.w->panels() / unit;
  const int most = AmxGroupPanels(call) / unit, threads = pool_.threads();
  const int groups = (units + most * threads - 1) / (most * threads) * threads;
  pool_.ParallelFor(groups, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      AmxPanels(call, tiles, units * i / groups * unit, units * (i + 1) / groups * unit,
                scratch_.OfThread(thread));
    }
  });
}

}  // namespace millrace::tensor
