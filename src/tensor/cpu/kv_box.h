// Copies boxes of KV between a CpuKvPool and dense bytes (Device::ExportKv and ImportKv): one head
// of one layer at a time. Pure functions over the caller's memory; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/cpu/kv_pool.h"

namespace millrace::tensor {

// Tokens [first_token, end_token) of the sequence whose block table is `blocks`.
struct KvHeadSpan {
  const CpuKvPool* pool = nullptr;
  int layer = 0, kv_head = 0;
  std::span<const BlockIndex> blocks;
  int first_token = 0, end_token = 0;
};

// `keys`, `values`: [token][head_dim] in the pool's type, with any alignment.
void ExportKvHead(const KvHeadSpan& span, std::byte* keys, std::byte* values);
void ImportKvHead(const KvHeadSpan& span, const std::byte* keys, const std::byte* values);

}  // namespace millrace::tensor
