#include "tensor/device.h"

namespace millrace::tensor {

Rows Rows::Columns(int first, int count) const {
  MR_DCHECK(first >= 0 && count >= 0 && first + count <= cols);
  return {static_cast<float*>(data) + first, rows, count, stride};
}

Rows Rows::Slice(int first, int count) const {
  MR_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
  return {static_cast<float*>(data) + static_cast<ptrdiff_t>(first) * stride, count, cols, stride};
}

size_t PoolKvBox::Bytes(const KvShape& shape) const {
  return 2 * BytesOf(shape.dtype) * static_cast<size_t>(end_layer - first_layer) *
         static_cast<size_t>(end_head - first_head) * static_cast<size_t>(end_token - first_token) *
         static_cast<size_t>(shape.head_dim);
}

}  // namespace millrace::tensor
