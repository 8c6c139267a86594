#include "tensor/testing/gemm_ref.h"

#include "tensor/cpu/float16.h"

namespace millrace::tensor {

float ElementOf(const HostMatrix& matrix, int row, int column) {
  const size_t i = static_cast<size_t>(row) * matrix.Stride() + column;
  switch (matrix.dtype) {
    case DType::kF32: return static_cast<const float*>(matrix.data)[i];
    case DType::kBF16: return FloatFromBF16(static_cast<const uint16_t*>(matrix.data)[i]);
    case DType::kF16: return FloatFromF16(static_cast<const uint16_t*>(matrix.data)[i]);
  }
  return 0;
}

void MatMulRef(Rows x, const PackSpec& w, const float* bias, Rows residual, Rows y) {
  for (int r = 0; r < x.rows; ++r) {
    const float* in = static_cast<const float*>(x.Slice(r, 1).data);
    float* out = static_cast<float*>(y.Slice(r, 1).data);
    int column = 0;
    for (const HostMatrix& part : w.parts) {
      const int n = w.transposed ? part.cols : part.rows;
      for (int j = 0; j < n; ++j, ++column) {
        double sum = 0;
        for (int k = 0; k < x.cols; ++k) {
          sum += double{in[k]} * (w.transposed ? ElementOf(part, k, j) : ElementOf(part, j, k));
        }
        if (bias != nullptr) sum += bias[column];
        if (residual.data != nullptr) {
          sum += static_cast<const float*>(residual.Slice(r, 1).data)[column];
        }
        out[column] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace millrace::tensor
