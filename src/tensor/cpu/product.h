// Products over a device's threads: checks shapes, chooses between tiles and multiply-adds, and
// divides rows and panels. Owned by a device, used by its thread.
#pragma once

#include <optional>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/scratch.h"
#include "tensor/cpu/thread_pool.h"

namespace millrace::tensor {

// What a product multiplies: rows as they are, or norm(rows), with room for it.
struct Factor {
  Rows x;
  const NormSpec* norm = nullptr;
  Rows normed;
};

class ProductRunner {
 public:
  // `limbs`: of activations where they meet bf16 weights. `on_tiles`: whether there is AMX.
  ProductRunner(int limbs, bool on_tiles, ThreadPool& pool, Scratch& scratch)
      : limbs_(limbs), on_tiles_(on_tiles), pool_(pool), scratch_(scratch) {}

  // PackedMatrix::input() of weights in blocks. Without tiles the arithmetic takes so long that
  // narrower rows would gain nothing.
  DType block_input() const { return on_tiles_ && limbs_ == 1 ? DType::kBF16 : DType::kF32; }

  // y = factor W^T + bias + residual; with a gate as in GatedMatMul, for a weight that alternates.
  void Run(const Factor& factor, const PackedMatrix& w, Rows y, const MatMulExtras& extras,
           std::optional<Activation> gate);

 private:
  void MultiplyAdd(GemmCall call);
  void OnTiles(const GemmCall& call, const NormSpec* norm);

  const int limbs_;
  const bool on_tiles_;
  ThreadPool& pool_;
  Scratch& scratch_;
};

// y = norm(x).
void NormRows(ThreadPool& pool, Rows x, const NormSpec& norm, Rows y);

}  // namespace millrace::tensor
