// CpuKvPool: the bytes of KV blocks, laid out for the attention kernel (attention.cc).
//
// [layer][block][kv head]; each holds first the keys, then the values:
//   keys    [block_size / 16][head_dim / 2] packs: dimensions 2 i and 2 i + 1 of 16 tokens, so that
//           tokens lie in vector lanes and scores need no sum over lanes;
//   values  [block_size][head_dim / 32] packs: 32 dimensions of one token; in bf16
//           [block_size / 16][head_dim / 16][8] packs: 16 dimensions of tokens 2 i and 2 i + 1.
// A pack is 32 numbers in storage type (widen-inl.h); in bf16, a row of a tile of AMX. head_dim is
// padded with zeros to a multiple of 32 for the values and of 2 for the keys; the padding is never
// written.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "tensor/cpu/memory.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr int kKeyRun = kKvBlockUnit;  // tokens that lie side by side

class CpuKvPool : public KvPool {
 public:
  static Result<std::unique_ptr<CpuKvPool>> New(const KvShape& shape) {
    auto pool = std::make_unique<CpuKvPool>();
    pool->shape_ = shape;
    MR_ASSIGN_OR_RETURN(pool->memory_,
                        HostMemory::Allocate(SaturatingProduct(shape.num_layers, shape.num_blocks,
                                                               pool->block_bytes()),
                                             "a KV pool", shape.huge_pages));
    return pool;
  }

  const KvShape& shape() const override { return shape_; }
  void ReturnMemory(std::span<const BlockIndex> blocks) override {
    std::vector<BlockIndex> sorted(blocks.begin(), blocks.end());
    std::ranges::sort(sorted);
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (size_t first = 0, end = 0; first < sorted.size(); first = end) {
        for (++end; end < sorted.size() && sorted[end] == sorted[end - 1] + 1;) ++end;
        memory_.Return(static_cast<size_t>(block(layer, sorted[first]) -
                                           static_cast<uint8_t*>(memory_.data())),
                       (end - first) * block_bytes());
      }
    }
  }
  Status Populate(int layer, BlockIndex first, BlockIndex end) override {
    const auto* from = static_cast<const uint8_t*>(memory_.data());
    return memory_.Populate(static_cast<size_t>(block(layer, first) - from),
                            static_cast<size_t>(end - first) * block_bytes());
  }
  int value_dim() const { return (shape_.head_dim + 31) / 32 * 32; }

  // Of one head of one block of one layer.
  size_t key_bytes() const {
    return static_cast<size_t>((shape_.head_dim + 1) / 2 * 2) * shape_.block_size *
           BytesOf(shape_.dtype);
  }
  size_t value_bytes() const {
    return static_cast<size_t>(value_dim()) * shape_.block_size * BytesOf(shape_.dtype);
  }
  // Of all heads of one block of one layer.
  size_t block_bytes() const { return (key_bytes() + value_bytes()) * shape_.num_kv_heads; }

  uint8_t* block(int layer, BlockIndex index) const {
    return static_cast<uint8_t*>(memory_.data()) +
           (static_cast<size_t>(layer) * shape_.num_blocks + index) * block_bytes();
  }
  uint8_t* keys(int layer, BlockIndex index, int head) const {
    return block(layer, index) + (key_bytes() + value_bytes()) * head;
  }
  uint8_t* values(int layer, BlockIndex index, int head) const {
    return keys(layer, index, head) + key_bytes();
  }

 private:
  KvShape shape_;
  HostMemory memory_;
};

}  // namespace millrace::tensor
