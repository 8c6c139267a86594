// Fitting: least squares on the *relative* error with non-negative coefficients, so that a longer
// prompt never costs less (DistServe's unconstrained fit has a negative one). The solver is the
// active-set method of Lawson and Hanson on the normal equations. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::cost {

// predicted / measured - 1| over rows; fractions, not per cent.
struct RelativeErrors {
  size_t rows = 0;
  double mean = 0, p50 = 0, p95 = 0, max = 0;
};

// REQUIRES: equal sizes, measured values above zero. Percentiles interpolate linearly.
RelativeErrors ErrorsOf(std::span<const double> predicted, std::span<const double> measured);
// "P50 0.8 %, P95 3.1 %, max 7.0 % over 120 rows".
std::string FormatErrors(const RelativeErrors& errors);

struct Fit {
  std::vector<double> coefficients;  // one per column, each >= 0
  RelativeErrors errors;             // on the rows used for the fit
};

inline constexpr size_t kFitColumnsMax = 64;
inline constexpr size_t kFitRowsMax = 1'000'000;

// Minimises sum over rows of (row . x / measured - 1)^2 subject to x >= 0. Columns that others
// already explain get 0. Returns kInvalidArgument for no rows, rows of different lengths, values
// that are not finite, and measurements that are not above zero.
Result<Fit> FitRelative(std::span<const std::vector<double>> rows,
                        std::span<const double> measured);

// Row . coefficients.
double Predict(std::span<const double> row, std::span<const double> coefficients);

}  // namespace millrace::cost
