// The product of gemm.h for bf16 weights on AMX's tiles: 16 rows of x times 16 outputs times 32 k
// an instruction. The bits are those of gemm.h.
//
// Pure functions over the caller's memory; any thread. REQUIRES: AmxIsThere(), and a processor with
// AVX-512. ProductRunner splits the work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/amx_rows.h"

namespace millrace::tensor {

// With fewer rows of limbs, multiply-adds are faster: 12-bit weights go from memory to registers.
inline constexpr int kAmxFewestRows = 4;

// The most panels that AmxPanels takes at a time; with gates, an even number.
int AmxGroupPanels(const GemmCall& call);
// Floats of scratch that it needs.
size_t AmxScratchFloats(const GemmCall& call);
// Computes panels [panel_begin, panel_end) of all rows from `tiles` (amx_rows.h); with gates, pairs
// of them.
void AmxPanels(const GemmCall& call, const uint16_t* tiles, int panel_begin, int panel_end,
               float* scratch);

}  // namespace millrace::tensor
