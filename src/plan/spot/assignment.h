// The assignment problem: assigns rows to distinct columns with maximum total weight (Kuhn-Munkres,
// by shortest augmenting paths). O(n^2 m) for n <= m. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::plan::spot {

// The largest allowed weight. A potential is a sum of at most one weight per row and must not
// overflow with 1,024 rows.
inline constexpr int64_t kAssignmentWeightMax = int64_t{1} << 52;
inline constexpr int kAssignmentRowsMax = 1024;

// The column of every row. If there are more rows than columns, some rows get none; otherwise every
// row gets one. Equal input gives equal output. `weights` is row-major, rows * columns, each in [0,
// kAssignmentWeightMax]. Neither side is longer than kAssignmentRowsMax.
std::vector<std::optional<int>> AssignMaxWeight(int rows, int columns,
                                                std::span<const int64_t> weights);

}  // namespace millrace::plan::spot
