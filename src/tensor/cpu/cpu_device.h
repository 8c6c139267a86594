// CpuDevice: tensor::Device on this machine's cores. Kernels are chosen for the CPU at run time
// (AVX-512, AVX2 or the baseline); activations are f32, weights and KV f32, bf16 or f16.
//
// Owned by the model of a worker and used by its thread; calls return when the work is done.
#pragma once

#include <memory>

#include "tensor/device.h"

namespace millrace::tensor {

Result<std::unique_ptr<Device>> NewCpuDevice(const DeviceOptions& options);

}  // namespace millrace::tensor
