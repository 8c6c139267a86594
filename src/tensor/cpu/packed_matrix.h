// CpuPackedMatrix: a weight in the order the product reads it.
//
// Outputs come in panels of 32; a panel is [k][32] in storage type, so that 32 outputs lie in
// vector lanes, each output is one chain of fused multiply-adds over k, and a product with one row
// reads the panel front to back. The last panel is filled up with zeros. The 32 values of one k are
// a "pack" (widen-inl.h): bf16 values j and j + 16 share a 32-bit word, low half first, so that
// widening 32 of them is one shift and one mask; f32 and f16 lie in their natural order.
//
// Immutable once packed; any thread may read.
#pragma once

#include <memory>

#include "tensor/cpu/memory.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr int kPanelWidth = 32;

class CpuPackedMatrix : public PackedMatrix {
 public:
  // Repacks straight from the parts, without a copy in between. kInvalidArgument when the parts do
  // not fit together, kResourceExhausted when there is no memory.
  static Result<std::unique_ptr<CpuPackedMatrix>> Pack(const PackSpec& spec, MemoryArena& arena,
                                                       ThreadPool& pool);

  int n() const override { return n_; }
  int k() const override { return k_; }
  size_t bytes() const override { return panels() * panel_bytes(); }

  DType dtype() const { return dtype_; }
  int panels() const { return (n_ + kPanelWidth - 1) / kPanelWidth; }
  size_t panel_bytes() const { return static_cast<size_t>(k_) * kPanelWidth * BytesOf(dtype_); }
  const uint8_t* panel(int i) const {
    return static_cast<const uint8_t*>(memory_.data) + i * panel_bytes();
  }

  // The sum over K is `chains` sums, of [ChainStart(i), ChainStart(i + 1)) each, added pairwise:
  // ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
  int chains() const { return chains_; }
  int ChainStart(int i) const { return static_cast<int>(int64_t{k_} * i / chains_); }

 private:
  int n_ = 0, k_ = 0, chains_ = 1;
  DType dtype_ = DType::kF32;
  MemoryArena::Piece memory_;
};

}  // namespace millrace::tensor
