// Reference product for the tests of gemm.cc. In double precision, from the weight as stored in the
// file.
#pragma once

#include "tensor/device.h"

namespace millrace::tensor {

// Number [row, column] of a host matrix of any type.
float ElementOf(const HostMatrix& matrix, int row, int column);

// y = x W^T + bias + residual, with W, bias (or null) and residual as in Device::MatMul.
void MatMulRef(Rows x, const PackSpec& w, const float* bias, Rows residual, Rows y);

}  // namespace millrace::tensor
