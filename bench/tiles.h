// The peak of AMX's tiles, for the roofline (machine.h).
#pragma once

#include <cstdint>

namespace millrace::bench {

// Products of bf16 tiles in registers; returns the operations done. REQUIRES: AmxIsThere().
double MultiplyTiles(int64_t rounds);

}  // namespace millrace::bench
