// The numbers of a packed panel's layout (packed_matrix.h).
#pragma once

#include <cstddef>

namespace millrace::tensor {

inline constexpr int kPanelWidth = 32;  // outputs

// Of bf16 weights: a block of k is two units of 16 outputs each.
inline constexpr int kBlockK = 32;         // values of k that a block adds up
inline constexpr int kUnitPairs = 16;      // pairs of k in a unit: all of its block's
inline constexpr size_t kUnitLanes = 16;   // outputs of a unit
inline constexpr size_t kUnitWords = 256;  // words of a unit, a pair of k each

}  // namespace millrace::tensor
