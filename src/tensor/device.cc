#include "tensor/device.h"

namespace millrace::tensor {

Rows Rows::Columns(int first, int count) const {
  MR_DCHECK(first >= 0 && count >= 0 && first + count <= cols);
  return {static_cast<std::byte*>(data) + BytesOf(type) * static_cast<size_t>(first), rows, count,
          stride, type};
}

Rows Rows::Slice(int first, int count) const {
  MR_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
  return {static_cast<std::byte*>(data) +
              BytesOf(type) * static_cast<size_t>(first) * static_cast<size_t>(stride),
          count, cols, stride, type};
}

size_t PoolKvBox::Bytes(const KvShape& shape) const {
  return 2 * BytesOf(shape.dtype) * static_cast<size_t>(end_layer - first_layer) *
         static_cast<size_t>(end_head - first_head) * static_cast<size_t>(end_token - first_token) *
         static_cast<size_t>(shape.head_dim);
}

void Device::Norm(Rows x, const NormSpec& norm, Rows y) {
  if (norm.kind == NormKind::kRms) return RmsNorm(x, *norm.weight, norm.epsilon, y);
  LayerNorm(x, *norm.weight, norm.bias, norm.epsilon, y);
}

void Device::NormedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w, Rows y,
                          const MatMulExtras& extras) {
  Norm(x, norm, normed);
  MatMul(normed, w, y, extras);
}

void Device::GatedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w,
                         const Vector* bias, Activation f, Rows both, Rows y) {
  NormedMatMul(x, norm, normed, w, both, {.bias = bias, .residual = {}});
  GatedActivate(both.Columns(0, y.cols), both.Columns(y.cols, y.cols), f, y);
}

void Device::StoreQkv(RowRange at, int layer, const QkvSpec& spec, Rows qkv) {
  const int heads = spec.q_columns(), kv = spec.kv_columns();
  const Rows q = qkv.Columns(0, heads), k = qkv.Columns(heads, kv);
  if (spec.q_norm != nullptr) HeadRmsNorm(q, spec.head_dim, *spec.q_norm, spec.epsilon);
  if (spec.k_norm != nullptr) HeadRmsNorm(k, spec.head_dim, *spec.k_norm, spec.epsilon);
  if (spec.rope != nullptr) {
    Rope(at, *spec.rope, spec.head_dim, q);
    Rope(at, *spec.rope, spec.head_dim, k);
  }
  WriteKv(at, layer, k, qkv.Columns(heads + kv, kv));
}

}  // namespace millrace::tensor
