// MilpSolver: the interface to a solver of mixed-integer linear programs. CBC is built in. A solver
// keeps no state between calls; one call at a time per object.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::plan {

inline constexpr double kLpInfinity = std::numeric_limits<double>::infinity();

// max objective' x, with row_lower <= A x <= row_upper, lower <= x <= upper, some x integer.
struct LinearProgram {
  struct Column {
    double lower = 0, upper = kLpInfinity, objective = 0;
    bool integer = false;
  };
  struct Row {
    double lower = -kLpInfinity, upper = kLpInfinity;
    std::vector<std::pair<int, double>> terms;  // column, coefficient; no column twice
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  int AddColumn(Column column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
  // Adds sum of terms <= upper, or >= lower.
  void AtMost(double upper, std::vector<std::pair<int, double>> terms) {
    rows.push_back({-kLpInfinity, upper, std::move(terms)});
  }
  void AtLeast(double lower, std::vector<std::pair<int, double>> terms) {
    rows.push_back({lower, kLpInfinity, std::move(terms)});
  }
  void Equal(double value, std::vector<std::pair<int, double>> terms) {
    rows.push_back({value, value, std::move(terms)});
  }
};

struct MilpLimits {
  std::optional<double> seconds;
  std::optional<int> nodes;        // of the search tree; this limit does not depend on the clock
  std::vector<double> warm_start;  // one value per column, or empty
};

enum class MilpStatus {
  kOptimal,
  kFeasible,    // stopped at a limit with a solution
  kNoSolution,  // stopped at a limit without a solution
  kInfeasible,
  kUnbounded,
};

struct MilpSolution {
  MilpStatus status = MilpStatus::kNoSolution;
  std::vector<double> values;  // by column; empty without a solution
  double objective = 0;        // of `values`
  double bound = kLpInfinity;  // no solution has a higher objective
  int64_t nodes = 0;

  bool has_values() const { return !values.empty(); }
};

class MilpSolver {
 public:
  virtual ~MilpSolver() = default;
  virtual MilpSolution Solve(const LinearProgram& program, const MilpLimits& limits) = 0;
};

std::unique_ptr<MilpSolver> MakeCbcSolver();

}  // namespace millrace::plan
