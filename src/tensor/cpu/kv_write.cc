// WriteKvHead of attention.h: converts f32 rows to the packs of a KV pool.
#include "tensor/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/kv_write.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>

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

template <class Stored>
void WriteValue(const float* v, int head_dim, typename Stored::T* value) {
  const DF d;
  for (int first = 0; first < head_dim; first += static_cast<int>(kPack), value += kPack) {
    HWY_ALIGN float edge[kPack] = {};
    const float* from = v + first;
    if (const int left = head_dim - first; left < static_cast<int>(kPack)) {
      std::copy_n(from, left, edge);
      from = edge;
    }
    for (size_t j = 0; j < kHalfPack; j += hn::Lanes(d)) {
      Stored::Store(d, hn::LoadU(d, from + j), hn::LoadU(d, from + kHalfPack + j), value, j);
    }
  }
}

void Write(const KvWrite& w) {
  const KvShape& shape = w.pool->shape();
  WithStored(shape.dtype, [&](auto stored) {
    using Stored = decltype(stored);
    using T = typename Stored::T;
    for (int i = 0; i < w.rows; ++i) {
      const BlockIndex block = w.blocks[(w.start + i) / shape.block_size];
      const int token = (w.start + i) % shape.block_size;
      WriteKey<Stored>(w.k + i * w.k_stride, shape.head_dim, token,
                       reinterpret_cast<T*>(w.pool->keys(w.layer, block, w.kv_head)));
      WriteValue<Stored>(w.v + i * w.v_stride, shape.head_dim,
                         reinterpret_cast<T*>(w.pool->values(w.layer, block, w.kv_head)) +
                             static_cast<size_t>(token) * w.pool->value_dim());
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
