// The product written down: what gemm.cc is measured against. In double precision, from the weight
// as the file has it.
#pragma once

#include "tensor/device.h"

namespace millrace::tensor {

// Number [row, column] of a host matrix of any type.
float ElementOf(const HostMatrix& matrix, int row, int column);

// y = x W^T + bias + residual, with W, bias (or null) and residual as in Device::MatMul.
void MatMulRef(Rows x, const PackSpec& w, const float* bias, Rows residual, Rows y);

}  // namespace millrace::tensor
