// The instruction set that the kernels of this process use: the best one of the processor, or less
// on request. Process-wide, because the kernels choose once.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::tensor {

// "avx512", "avx2", "sse4", "neon", ...: what the kernels use. Any thread.
std::string CpuFeatures();

// The same for people, with the number of compute threads: "cpu avx512 x2".
std::string CpuName(int threads);

// Makes the kernels use `features` ("avx512" or "avx2") and nothing better. kInvalidArgument when
// the name is unknown or the processor lacks them. Call it before the first device is made.
Status LimitCpuFeatures(std::string_view features);

// The version of the arithmetic that docs/decisions/0017-bits-on-every-x86.md defines. Processes of
// one class compute the same bits; a processor without fused multiply-add has a class of its own.
std::string CpuNumericClass();

}  // namespace millrace::tensor
