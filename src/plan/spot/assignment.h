// The assignment problem: rows to distinct columns with the greatest total weight (Kuhn-Munkres, by
// shortest augmenting paths). O(n^2 m) for n <= m. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::plan::spot {

// The greatest weight: potentials are sums of at most as many as there are rows, and must not
// overflow with 1,024 of them.
inline constexpr int64_t kAssignmentWeightMax = int64_t{1} << 52;
inline constexpr int kAssignmentRowsMax = 1024;

// The column of every row, none for the rows left over when there are more rows than columns; with
// no more rows than columns every row gets one. Equal input gives equal output.
// `weights` is row-major, rows * columns, each in [0, kAssignmentWeightMax]; neither side
// is longer than kAssignmentRowsMax.
std::vector<std::optional<int>> AssignMaxWeight(int rows, int columns,
                                                std::span<const int64_t> weights);

}  // namespace millrace::plan::spot
