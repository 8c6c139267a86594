// WriteKvHead of attention.h: converts f32 rows to the packs of a KV pool.
#include "tensor/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/kv_write.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "tensor/cpu/transpose-inl.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {

template <class Stored>
void WriteKey(const float* k, int head_dim, int token, typename Stored::T* keys) {
  const int pairs = (head_dim + 1) / 2;
  typename Stored::T* run = keys + static_cast<size_t>(token / kKeyRun) * pairs * kPack;
  const size_t lane = token % kKeyRun;
  for (int i = 0; i < head_dim; ++i) {
    run[i / 2 * kPack + Stored::Index(i % 2 * kHalfPack + lane)] = Stored::Narrow(k[i]);
  }
}

// Tokens [first, end) of a run of keys, whose first row is at k. A pair of dimensions is a word.
void WriteKeyPairs(const float* k, size_t k_stride, int head_dim, int first, int end,
                   uint16_t* run) {
  constexpr int kDims = 32;  // at a time
  auto* words = reinterpret_cast<uint32_t*>(run);
  uint32_t rows[kKeyRun * kDims / 2];  // [tokens][pairs]
  for (int dim = 0; dim < head_dim; dim += kDims) {
    const int dims = std::min(kDims, head_dim - dim), pairs = (dims + 1) / 2;
    for (int t = 0; t < end - first; ++t) {
      uint16_t row[kDims] = {};
      RoundNumbers(k + static_cast<size_t>(t) * k_stride + dim, static_cast<size_t>(dims), row);
      std::memcpy(rows + t * kDims / 2, row, sizeof(row));
    }
    Transpose(rows, kDims / 2, end - first, pairs,
              words + static_cast<size_t>(dim / 2) * kHalfPack + first, kHalfPack);
  }
}

template <class Stored>
void WriteValue(const float* v, int head_dim, typename Stored::T* value) {
  for (int i = 0; i < head_dim; ++i) value[i] = Stored::Narrow(v[i]);
}

// Tokens [first, end) of a run, whose first row is at v.
void WriteValuePairs(const float* v, size_t v_stride, int head_dim, int first, int end,
                     uint16_t* run) {
  const DF d;
  for (int token = first; token < end;) {
    const bool pair = token % 2 == 0 && token + 1 < end;
    const float* from = v + static_cast<size_t>(token - first) * v_stride;
    uint16_t* words = run + static_cast<size_t>(token / 2) * kPack;
    int dim = 0;
    for (; pair && dim + static_cast<int>(kHalfPack) <= head_dim; dim += kHalfPack) {
      for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
        StoredBF16::Store(d, hn::LoadU(d, from + dim + j), hn::LoadU(d, from + v_stride + dim + j),
                          words + dim * kKeyRun, j);
      }
    }
    // Number by number: readers may copy the other token of a word meanwhile.
    uint16_t rounded[kHalfPack];
    for (int t = token; t < token + 1 + pair; ++t, from += v_stride) {
      for (int i = dim; i < head_dim; i += kHalfPack) {
        const int count = std::min<int>(kHalfPack, head_dim - i);
        RoundNumbers(from + i, static_cast<size_t>(count), rounded);
        uint16_t* to = words + i * kKeyRun + t % 2;
        for (int j = 0; j < count; ++j) to[2 * j] = rounded[j];
      }
    }
    token += 1 + pair;
  }
}

void Write(const KvWrite& w) {
  const KvShape& shape = w.pool->shape();
  WithStored(shape.dtype, [&](auto stored) {
    using Stored = decltype(stored);
    using T = typename Stored::T;
    for (int i = 0; i < w.rows;) {
      const BlockIndex block = w.blocks[(w.start + i) / shape.block_size];
      const int in_block = (w.start + i) % shape.block_size, first = in_block % kKeyRun;
      const int end = std::min(kKeyRun, first + w.rows - i);
      T* keys = reinterpret_cast<T*>(w.pool->keys(w.layer, block, w.kv_head));
      T* values = reinterpret_cast<T*>(w.pool->values(w.layer, block, w.kv_head)) +
                  static_cast<size_t>(in_block - first) * w.pool->value_dim();
      const float* v = w.v + i * w.v_stride;
      const float* key = w.k + i * w.k_stride;
      const int run = in_block - first;  // its first token
      i += end - first;
      if constexpr (Stored::kDType == DType::kBF16) {
        WriteValuePairs(v, w.v_stride, shape.head_dim, first, end, values);
        WriteKeyPairs(key, w.k_stride, shape.head_dim, first, end,
                      keys + static_cast<size_t>(run) * ((shape.head_dim + 1) / 2 * 2));
        continue;
      }
      for (int t = first; t < end; ++t, key += w.k_stride, v += w.v_stride) {
        WriteKey<Stored>(key, shape.head_dim, run + t, keys);
        WriteValue<Stored>(v, shape.head_dim,
                           values + static_cast<size_t>(t) * w.pool->value_dim());
      }
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(Write);

void WriteKvHead(const KvWrite& write) { HWY_DYNAMIC_DISPATCH(Write)(write); }

}  // namespace millrace::tensor
#endif
