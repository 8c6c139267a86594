// What the kernels of this process use: the processor's best instruction set, or less on request,
// and how exactly they multiply activations by bf16 weights. Process-wide, because the kernels
// choose once; set before the first device is made.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::tensor {

// "amx", "avx512", "avx2", "sse4", "neon", ...: what the kernels use. Any thread.
std::string CpuFeatures();
// Whether products run on AMX's tiles (amx.h); the other kernels then use AVX-512.
bool CpuUsesAmx();

// The same for people, with the number of compute threads: "cpu avx512 x2", or "cpu avx512 bf16x2
// x2" when activations are two numbers.
std::string CpuName(int threads);

// Makes the kernels use `features` ("amx", "avx512" or "avx2") and nothing better. kInvalidArgument
// when the name is unknown or the processor lacks them.
Status LimitCpuFeatures(std::string_view features);

// How many bf16 numbers an activation is made of where bf16 weights meet it: one, its nearest, or
// two, which add up to it nearly exactly and take twice the arithmetic. `name` is "bf16" (the
// default) or "bf16x2"; kInvalidArgument for another.
Status SetCpuActivations(std::string_view name);
int CpuActivationLimbs();

// The version of the arithmetic that docs/decisions/0017-bits-on-every-x86.md and 0038 define.
// Processes of one class compute the same bits. Two limbs are a class of their own, and so is a
// processor without fused multiply-add.
std::string CpuNumericClass();

}  // namespace millrace::tensor
