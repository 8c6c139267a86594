// CpuPackedMatrix: a weight in the order in which the product reads it.
//
// Outputs are grouped in panels of 32; a panel is [k][32] in storage type. So 32 outputs lie in
// vector lanes, each output is one chain of fused multiply-adds over k, and a product with one row
// reads the panel front to back. The last panel is padded with zeros. The 32 values of one k are a
// "pack" (widen-inl.h): bf16 values j and j + 16 share a 32-bit word, low half first, so that
// widening 32 of them takes one shift and one mask; f32 and f16 are in natural order. A bf16 weight
// whose exponents allow it is stored in 12 bits per number instead (short_bf16.h): a panel is then
// its 32 bases and the groups of its k. The few groups that do not fit are kept aside in their
// original packs; their places in the panel are unused.
//
// Immutable once packed; any thread may read.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tensor/cpu/memory.h"
#include "tensor/cpu/short_bf16.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr int kPanelWidth = 32;

enum class PanelFormat { kF32, kBF16, kF16, kShortBF16 };

// The groups of a panel that are kept aside, in order.
struct Asides {
  std::span<const uint32_t> groups;  // kNoGroup is the last
  const uint16_t* packs;             // kShortGroup packs for each group
};
inline constexpr uint32_t kNoGroup = ~uint32_t{0};

class CpuPackedMatrix : public PackedMatrix {
 public:
  // Repacks directly from the parts; short bf16 panel by panel. kInvalidArgument when the parts do
  // not fit together, kResourceExhausted when there is no memory.
  static Result<std::unique_ptr<CpuPackedMatrix>> Pack(const PackSpec& spec, MemoryArena& arena,
                                                       ThreadPool& pool);

  int n() const override { return n_; }
  int k() const override { return k_; }
  size_t bytes() const override;

  PanelFormat format() const { return format_; }
  int panels() const { return (n_ + kPanelWidth - 1) / kPanelWidth; }
  size_t panel_bytes() const;
  const uint8_t* panel(int i) const {
    return static_cast<const uint8_t*>(memory_.data) + i * panel_bytes();
  }
  // REQUIRES: format() is kShortBF16.
  Asides asides(int panel) const;

  // The sum over K is `chains` sums, of [ChainStart(i), ChainStart(i + 1)) each, added pairwise:
  // ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
  int chains() const { return chains_; }
  int ChainStart(int i) const { return static_cast<int>(int64_t{k_} * i / chains_); }

 private:
  struct PanelAsides {
    std::vector<uint32_t> groups, packs;
  };

  bool CanBeShort() const;
  bool IsWorthShortening(const PackSpec& spec) const;
  Status PackPlain(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool);
  Status PackShort(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool);
  // Shortens panel i from its packs.
  void Shorten(int i, const uint32_t* packs, PanelAsides& asides);
  Status KeepAsides(std::span<const PanelAsides> asides, MemoryArena& arena);

  int n_ = 0, k_ = 0, chains_ = 1;
  PanelFormat format_ = PanelFormat::kF32;
  MemoryArena::Piece memory_;
  std::vector<uint32_t> aside_groups_;  // of all panels, each ended by kNoGroup
  std::vector<size_t> aside_begin_;     // of each panel in them
  MemoryArena::Piece aside_packs_;
};

}  // namespace millrace::tensor
