#include "cost/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/statistics.h"

namespace millrace::cost {
namespace {

// Columns are first scaled to length 1.
constexpr double kSingular = 1e-12;     // residue of a column that others explain
constexpr double kGradientMin = 1e-11;  // relative to the steepest at the start

// min |A x - 1|^2, x >= 0, given G = A'A with unit diagonal and h = A'1.
class NonNegativeSolver {
 public:
  NonNegativeSolver(std::vector<std::vector<double>> gram, std::vector<double> h)
      : gram_(std::move(gram)), h_(std::move(h)), x_(h_.size(), 0.0) {}

  // Terminates: every round lowers the objective or rejects one more column.
  Status Solve() {
    const size_t n = h_.size();
    std::vector<bool> refused(n, false);  // gain nothing until x changes
    const size_t rounds_max = 30 * n + 30;
    for (size_t round = 0; round < rounds_max; ++round) {
      const auto best = SteepestColumn(refused);
      if (!best) return {};
      const double before = Objective();
      active_.push_back(*best);
      std::vector<double> solution;
      if (!SolveActive(solution) || solution.back() <= 0) {
        active_.pop_back();
        refused[*best] = true;
        continue;
      }
      MoveTo(std::move(solution));
      if (Objective() < before) refused.assign(n, false);
      refused[*best] = true;
    }
    return Internal(fmt::format("the fit did not converge in {} rounds", rounds_max));
  }

  const std::vector<double>& x() const { return x_; }

 private:
  std::optional<size_t> SteepestColumn(const std::vector<bool>& refused) const {
    std::optional<size_t> best;
    double steepest = kGradientMin * std::max(0.0, *std::max_element(h_.begin(), h_.end()));
    for (size_t j = 0; j < h_.size(); ++j) {
      if (refused[j] || std::find(active_.begin(), active_.end(), j) != active_.end()) continue;
      double gradient = h_[j];
      for (const size_t k : active_) gradient -= gram_[j][k] * x_[k];
      if (gradient > steepest) {
        steepest = gradient;
        best = j;
      }
    }
    return best;
  }

  // Cholesky on the active columns; false if one of them is a combination of the others.
  bool SolveActive(std::vector<double>& solution) const {
    const size_t n = active_.size();
    std::vector<std::vector<double>> lower(n, std::vector<double>(n, 0.0));
    solution.assign(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = gram_[active_[i]][active_[j]];
        for (size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
        if (i == j) {
          if (sum <= kSingular) return false;
          lower[i][i] = std::sqrt(sum);
        } else {
          lower[i][j] = sum / lower[j][j];
        }
      }
      double right = h_[active_[i]];
      for (size_t k = 0; k < i; ++k) right -= lower[i][k] * solution[k];
      solution[i] = right / lower[i][i];
    }
    for (size_t i = n; i-- > 0;) {
      for (size_t k = i + 1; k < n; ++k) solution[i] -= lower[k][i] * solution[k];
      solution[i] /= lower[i][i];
    }
    return true;
  }

  // Moves from x towards the unconstrained solution of the active columns, dropping the first
  // column that would turn negative, until the solution itself is feasible.
  void MoveTo(std::vector<double> solution) {
    while (true) {
      std::optional<size_t> dropped;  // index into active_
      double step = 1;
      for (size_t i = 0; i < active_.size(); ++i) {
        const double now = x_[active_[i]];
        if (solution[i] > 0) continue;
        const double reach = now > 0 ? now / (now - solution[i]) : 0;
        if (!dropped || reach < step) {
          step = reach;
          dropped = i;
        }
      }
      for (size_t i = 0; i < active_.size(); ++i) {
        double& value = x_[active_[i]];
        value = std::max(0.0, value + step * (solution[i] - value));
      }
      if (!dropped) return;
      x_[active_[*dropped]] = 0;
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(*dropped));
      if (!SolveActive(solution)) return;
    }
  }

  // A x - 1|^2 without its constant.
  double Objective() const {
    double sum = 0;
    for (const size_t j : active_) {
      double product = -2 * h_[j];
      for (const size_t k : active_) product += gram_[j][k] * x_[k];
      sum += x_[j] * product;
    }
    return sum;
  }

  const std::vector<std::vector<double>> gram_;
  const std::vector<double> h_;
  std::vector<double> x_;
  std::vector<size_t> active_;
};

Status CheckInput(std::span<const std::vector<double>> rows, std::span<const double> measured) {
  if (rows.empty() || rows.size() != measured.size() || rows.size() > kFitRowsMax) {
    return InvalidArgument(
        fmt::format("a fit needs 1 to {} rows and as many measurements, got {} "
                    "and {}",
                    kFitRowsMax, rows.size(), measured.size()));
  }
  const size_t columns = rows.front().size();
  if (columns == 0 || columns > kFitColumnsMax) {
    return InvalidArgument(
        fmt::format("a fit needs 1 to {} columns, got {}", kFitColumnsMax, columns));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() != columns ||
        !std::all_of(rows[i].begin(), rows[i].end(), [](double v) { return std::isfinite(v); })) {
      return InvalidArgument(
          fmt::format("row {} of the fit needs {} finite numbers", i + 1, columns));
    }
    if (!(measured[i] > 0) || !std::isfinite(measured[i])) {
      return InvalidArgument(
          fmt::format("row {} of the fit: measured {}, must be above zero", i + 1, measured[i]));
    }
  }
  return {};
}

}  // namespace

RelativeErrors ErrorsOf(std::span<const double> predicted, std::span<const double> measured) {
  MR_CHECK(predicted.size() == measured.size() && !measured.empty());
  std::vector<double> errors(measured.size());
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i] = std::abs(predicted[i] / measured[i] - 1);
  }
  std::sort(errors.begin(), errors.end());
  return {errors.size(), Mean(errors), Median(errors), Percentile(errors, 95), errors.back()};
}

std::string FormatErrors(const RelativeErrors& errors) {
  return fmt::format("P50 {:.1f} %, P95 {:.1f} %, max {:.1f} % over {} rows", errors.p50 * 100,
                     errors.p95 * 100, errors.max * 100, errors.rows);
}

double Predict(std::span<const double> row, std::span<const double> coefficients) {
  MR_CHECK(row.size() == coefficients.size());
  return std::inner_product(row.begin(), row.end(), coefficients.begin(), 0.0);
}

Result<Fit> FitRelative(std::span<const std::vector<double>> rows,
                        std::span<const double> measured) {
  MR_RETURN_IF_ERROR(CheckInput(rows, measured));
  const size_t n = rows.front().size();
  std::vector<double> scale(n, 0.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < n; ++j) scale[j] = std::hypot(scale[j], rows[i][j] / measured[i]);
  }
  std::vector<std::vector<double>> gram(n, std::vector<double>(n, 0.0));
  std::vector<double> h(n, 0.0), scaled(n);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < n; ++j) {
      scaled[j] = scale[j] > 0 ? rows[i][j] / measured[i] / scale[j] : 0;
      h[j] += scaled[j];
      for (size_t k = 0; k <= j; ++k) gram[j][k] += scaled[j] * scaled[k];
    }
  }
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = j + 1; k < n; ++k) gram[j][k] = gram[k][j];
  }
  NonNegativeSolver solver(std::move(gram), std::move(h));
  MR_RETURN_IF_ERROR(solver.Solve());
  Fit fit;
  fit.coefficients = solver.x();
  for (size_t j = 0; j < n; ++j) {
    fit.coefficients[j] = scale[j] > 0 ? fit.coefficients[j] / scale[j] : 0;
  }
  std::vector<double> predicted;
  predicted.reserve(rows.size());
  for (const auto& row : rows) predicted.push_back(Predict(row, fit.coefficients));
  fit.errors = ErrorsOf(predicted, measured);
  return fit;
}

}  // namespace millrace::cost
