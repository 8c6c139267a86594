#include "plan/spot/assignment.h"

#include <limits>

#include "base/check.h"

namespace millrace::plan::spot {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

// Rows enter one by one; each finds the shortest augmenting path in reduced costs (-weight minus
// both potentials). Index 0 of rows and columns is a sentinel. REQUIRES: rows <= columns.
class Matcher {
 public:
  Matcher(int rows, int columns, std::span<const int64_t> weights, bool transposed)
      : rows_(rows),
        columns_(columns),
        weights_(weights),
        transposed_(transposed),
        row_potential_(rows + 1),
        column_potential_(columns + 1),
        row_of_(columns + 1),
        before_(columns + 1) {}

  // The row (from 1) of every column (from 1); 0 for a free column.
  const std::vector<int>& Solve() {
    for (int row = 1; row <= rows_; ++row) Insert(row);
    return row_of_;
  }

 private:
  int64_t Cost(int row, int column) const {
    const size_t r = row - 1, c = column - 1;
    return transposed_ ? -weights_[c * rows_ + r] : -weights_[r * columns_ + c];
  }

  void Insert(int row) {
    row_of_[0] = row;
    distance_.assign(columns_ + 1, kFar);
    used_.assign(columns_ + 1, false);
    int column = 0;
    do {
      column = Extend(column);
    } while (row_of_[column] != 0);
    while (column != 0) {
      row_of_[column] = row_of_[before_[column]];
      column = before_[column];
    }
  }

  // Adds `column` to the tree and moves the potentials so that the next column becomes tight.
  int Extend(int column) {
    used_[column] = true;
    const int row = row_of_[column];
    int64_t delta = kFar;
    int next = 0;
    for (int j = 1; j <= columns_; ++j) {
      if (used_[j]) continue;
      const int64_t reduced = Cost(row, j) - row_potential_[row] - column_potential_[j];
      if (reduced < distance_[j]) {
        distance_[j] = reduced;
        before_[j] = column;
      }
      if (distance_[j] < delta) {
        delta = distance_[j];
        next = j;
      }
    }
    for (int j = 0; j <= columns_; ++j) {
      if (used_[j]) {
        row_potential_[row_of_[j]] += delta;
        column_potential_[j] -= delta;
      } else if (distance_[j] != kFar) {
        distance_[j] -= delta;
      }
    }
    return next;
  }

  int rows_, columns_;
  std::span<const int64_t> weights_;
  bool transposed_;
  std::vector<int64_t> row_potential_, column_potential_, distance_;
  std::vector<int> row_of_, before_;
  std::vector<bool> used_;
};

}  // namespace

std::vector<std::optional<int>> AssignMaxWeight(int rows, int columns,
                                                std::span<const int64_t> weights) {
  MR_CHECK(rows >= 0 && columns >= 0 && weights.size() == static_cast<size_t>(rows) * columns)
      << rows << " x " << columns << " against " << weights.size();
  MR_CHECK(rows <= kAssignmentRowsMax && columns <= kAssignmentRowsMax) << rows << columns;
  for (const int64_t w : weights) MR_CHECK(w >= 0 && w <= kAssignmentWeightMax) << w;
  std::vector<std::optional<int>> column_of(rows);
  if (rows == 0 || columns == 0) return column_of;
  const bool transposed = rows > columns;
  Matcher matcher(transposed ? columns : rows, transposed ? rows : columns, weights, transposed);
  const std::vector<int>& row_of = matcher.Solve();
  for (size_t j = 1; j < row_of.size(); ++j) {
    if (row_of[j] == 0) continue;
    if (transposed) {
      column_of[j - 1] = row_of[j] - 1;
    } else {
      column_of[row_of[j] - 1] = static_cast<int>(j) - 1;
    }
  }
  return column_of;
}

}  // namespace millrace::plan::spot
