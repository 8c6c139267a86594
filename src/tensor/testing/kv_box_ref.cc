#include "tensor/testing/kv_box_ref.h"

#include <cstring>

namespace millrace::tensor {
namespace {

// The index of number j in a pack of 32: bf16 numbers j and j + 16 share a word.
size_t InPack(DType dtype, int j) {
  if (dtype != DType::kBF16) return static_cast<size_t>(j);
  return static_cast<size_t>(j < 16 ? 2 * j : 2 * (j - 16) + 1);
}

}  // namespace

void ExportKvHeadRef(const KvHeadSpan& span, std::byte* keys, std::byte* values) {
  const KvShape& shape = span.pool->shape();
  const size_t size = BytesOf(shape.dtype), packs = (static_cast<size_t>(shape.head_dim) + 1) / 2;
  for (int token = span.first_token; token < span.end_token; ++token) {
    const BlockIndex block = span.blocks[token / shape.block_size];
    const auto at = static_cast<size_t>(token % shape.block_size);
    for (int dim = 0; dim < shape.head_dim; ++dim) {
      const size_t key = (at / 16 * packs + dim / 2) * 32 +
                         InPack(shape.dtype, dim % 2 * 16 + static_cast<int>(at % 16));
      const size_t value = shape.dtype == DType::kBF16
                               ? at / 16 * 16 * span.pool->value_dim() + dim / 16 * 256 +
                                     at % 16 / 2 * 32 + dim % 16 * 2 + at % 2
                               : at * span.pool->value_dim() + dim;
      std::memcpy(keys, span.pool->keys(span.layer, block, span.kv_head) + key * size, size);
      std::memcpy(values, span.pool->values(span.layer, block, span.kv_head) + value * size, size);
      keys += size;
      values += size;
    }
  }
}

}  // namespace millrace::tensor
