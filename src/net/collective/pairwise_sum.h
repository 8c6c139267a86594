// PairwiseSum: adds 1, 2, 4 or 8 vectors in the order ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
// Any thread.
#pragma once

#include <cstddef>
#include <span>

namespace millrace::net {

// out[i] = the sum of parts[r][i]; `out` may be one of the parts.
void PairwiseSum(std::span<const float* const> parts, size_t count, float* out);

}  // namespace millrace::net
