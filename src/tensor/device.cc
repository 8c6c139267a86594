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

}  // namespace millrace::tensor
