// CpuPackedMatrix: a weight in the order in which the product reads it.
//
// Outputs are grouped in panels of 32, so that they lie in vector lanes, and a product with one row
// reads a panel front to back. The last panel is padded with zeros.
// Where a weight has gates and what they gate, panels of the two alternate, so that a product meets
// both at once.
//
//   f32, f16   [k][32]: an output is one chain of fused multiply-adds over k.
//   bf16       [k / 32][2 units][16 pairs of k][16 outputs] words, the even k in the lower half of
//              each. A unit is a tile of AMX, and a shift and a mask widen a word. An output is a
//              sum of blocks of 32 k (docs/decisions/0018-block-products.md).
//   short bf16 a bf16 weight whose exponents allow it takes 12 bits per number (short_bf16.h): a
//              panel is 32 bases, then groups of four pairs in the order above. The few groups that
//              do not fit are kept aside as they were; their places in the panel are unused.
//
// Immutable once packed; any thread may read.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tensor/cpu/memory.h"
#include "tensor/cpu/panel.h"
#include "tensor/cpu/short_bf16.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/device.h"

namespace millrace::tensor {

enum class PanelFormat { kF32, kBF16, kF16, kShortBF16 };

// The groups of a panel that are kept aside, in order.
struct Asides {
  std::span<const uint32_t> groups;  // kNoGroup is the last
  const uint32_t* words;             // kShortGroup x 16 for each group
};
inline constexpr uint32_t kNoGroup = ~uint32_t{0};

class CpuPackedMatrix : public PackedMatrix {
 public:
  // Repacks directly from the parts; short bf16 panel by panel. kInvalidArgument when the parts do
  // not fit together, kResourceExhausted when there is no memory. `block_input`: input() of a
  // weight in blocks.
  static Result<std::unique_ptr<CpuPackedMatrix>> Pack(const PackSpec& spec, MemoryArena& arena,
                                                       ThreadPool& pool,
                                                       DType block_input = DType::kF32);

  int n() const override { return n_; }
  int k() const override { return k_; }
  size_t bytes() const override;
  DType input() const override { return in_blocks() ? block_input_ : DType::kF32; }

  PanelFormat format() const { return format_; }
  int panels() const { return (n_ + kPanelWidth - 1) / kPanelWidth; }
  // Whether panel 2 i has gates and panel 2 i + 1 what they gate. Else panels are in order.
  bool alternates() const { return alternates_; }
  // The first output of panel `i`.
  int FirstOutput(int i) const {
    return kPanelWidth * (alternates_ ? i % 2 * (panels() / 2) + i / 2 : i);
  }
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

  // Whether a chain is a sum of blocks of kBlockK (bf16), or one sequence of multiply-adds.
  bool in_blocks() const {
    return format_ == PanelFormat::kBF16 || format_ == PanelFormat::kShortBF16;
  }
  // Chain i is at k [PackedStart(i), PackedStart(i + 1)) of a panel. In blocks, zeros fill its last
  // one.
  int PackedStart(int i) const { return packed_starts_[static_cast<size_t>(i)]; }
  int packed_k() const { return PackedStart(chains_); }

 private:
  struct PanelAsides {
    std::vector<uint32_t> groups, words;
  };

  void SetPackedStarts();
  // Panel i in the layout of its format; short bf16 as if it were bf16.
  void PackPanel(const PackSpec& spec, int i, void* panel) const;
  template <typename T>
  void PackPlainPanel(const PackSpec& spec, int i, T* panel) const;
  void PackBlockPanel(const PackSpec& spec, int i, uint32_t* panel) const;
  bool CanBeShort() const;
  bool IsWorthShortening(const PackSpec& spec) const;
  Status PackPlain(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool);
  Status PackShort(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool);
  // Shortens panel i from its bf16 words.
  void Shorten(int i, const uint32_t* words, PanelAsides& asides);
  Status KeepAsides(std::span<const PanelAsides> asides, MemoryArena& arena);

  int n_ = 0, k_ = 0, chains_ = 1;
  bool alternates_ = false;
  std::array<int, kVirtualShards + 1> packed_starts_ = {};
  PanelFormat format_ = PanelFormat::kF32;
  DType block_input_ = DType::kF32;
  MemoryArena::Piece memory_;
  std::vector<uint32_t> aside_groups_;  // of all panels, each ended by kNoGroup
  std::vector<size_t> aside_begin_;     // of each panel in them
  MemoryArena::Piece aside_words_;
};

}  // namespace millrace::tensor
