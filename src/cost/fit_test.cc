#include "cost/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "base/rng.h"
#include "base/testing/source_path.h"
#include "cost/distserve_cost.h"

namespace millrace::cost {
namespace {

using Matrix = std::vector<std::vector<double>>;

double Loss(const Matrix& rows, const std::vector<double>& measured, const std::vector<double>& x) {
  double loss = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double error = Predict(rows[i], x) / measured[i] - 1;
    loss += error * error;
  }
  return loss;
}

// Least squares by Householder reflections on the chosen columns, independent of the normal
// equations under test. nullopt if the columns are dependent.
std::optional<std::vector<double>> LeastSquares(const Matrix& rows,
                                                const std::vector<double>& measured,
                                                unsigned subset) {
  const size_t m = rows.size(), n = rows.front().size();
  std::vector<size_t> chosen;
  for (size_t j = 0; j < n; ++j) {
    if (subset >> j & 1) chosen.push_back(j);
  }
  Matrix a(m, std::vector<double>(chosen.size() + 1));
  for (size_t i = 0; i < m; ++i) {
    for (size_t c = 0; c < chosen.size(); ++c) a[i][c] = rows[i][chosen[c]] / measured[i];
    a[i].back() = 1;
  }
  for (size_t c = 0; c < chosen.size(); ++c) {
    double norm = 0;
    for (size_t i = c; i < m; ++i) norm = std::hypot(norm, a[i][c]);
    if (norm < 1e-9) return std::nullopt;
    std::vector<double> v(m, 0.0);
    for (size_t i = c; i < m; ++i) v[i] = a[i][c];
    v[c] += v[c] > 0 ? norm : -norm;
    double vv = 0;
    for (const double x : v) vv += x * x;
    for (size_t k = c; k <= chosen.size(); ++k) {
      double dot = 0;
      for (size_t i = c; i < m; ++i) dot += v[i] * a[i][k];
      for (size_t i = c; i < m; ++i) a[i][k] -= 2 * dot / vv * v[i];
    }
  }
  std::vector<double> x(n, 0.0);
  for (size_t c = chosen.size(); c-- > 0;) {
    double value = a[c].back();
    for (size_t k = c + 1; k < chosen.size(); ++k) value -= a[c][k] * x[chosen[k]];
    x[chosen[c]] = value / a[c][c];
  }
  return x;
}

double BruteForceLoss(const Matrix& rows, const std::vector<double>& measured) {
  const size_t n = rows.front().size();
  double best = Loss(rows, measured, std::vector<double>(n, 0.0));
  for (unsigned subset = 1; subset < 1u << n; ++subset) {
    const auto x = LeastSquares(rows, measured, subset);
    if (!x) continue;
    bool feasible = true;
    for (const double v : *x) feasible = feasible && v >= 0;
    if (feasible) best = std::min(best, Loss(rows, measured, *x));
  }
  return best;
}

TEST(FitTest, EqualsTheBestOfAllActiveSets) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const auto n = static_cast<size_t>(rng.Between(1, 6));
    const auto m = static_cast<size_t>(rng.Between(static_cast<int64_t>(n), 25));
    Matrix rows(m, std::vector<double>(n));
    std::vector<double> measured(m);
    for (size_t i = 0; i < m; ++i) {
      // Mixed signs, so that the constraint binds; columns of very different size.
      for (size_t j = 0; j < n; ++j) {
        rows[i][j] = (rng.Uniform() - 0.4) * std::pow(10.0, static_cast<double>(j));
      }
      measured[i] = 0.1 + rng.Uniform() * 3;
    }
    const auto fit = FitRelative(rows, measured);
    ASSERT_TRUE(fit.ok()) << "seed " << seed << ": " << fit.status().ToString();
    for (const double x : fit->coefficients) EXPECT_GE(x, 0) << "seed " << seed;
    const double best = BruteForceLoss(rows, measured);
    EXPECT_LE(Loss(rows, measured, fit->coefficients), best * (1 + 1e-9) + 1e-12)
        << "seed " << seed << ", " << n << " columns, " << m << " rows";
  }
}

TEST(FitTest, RecoversPlantedCoefficients) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    // Some are exactly zero, so the constraint is active there.
    std::vector<double> planted = {20e-3 * rng.Uniform(), 1e-4 * rng.Uniform(),
                                   1e-8 * rng.Uniform(), 0, 5e-5 * rng.Uniform()};
    planted[static_cast<size_t>(rng.Between(1, 4))] = 0;
    Matrix rows;
    std::vector<double> measured;
    for (int i = 0; i < 60; ++i) {
      const double length = static_cast<double>(rng.Between(1, 4096));
      rows.push_back({1, length, length * length, std::sqrt(length),
                      static_cast<double>(rng.Between(1, 128))});
      measured.push_back(Predict(rows.back(), planted));
    }
    const auto fit = FitRelative(rows, measured);
    ASSERT_TRUE(fit.ok());
    for (size_t j = 0; j < planted.size(); ++j) {
      EXPECT_NEAR(fit->coefficients[j], planted[j], planted[0] * 1e-7) << seed << ", " << j;
    }
    EXPECT_LT(fit->errors.max, 1e-6);
  }
}

// A fit to times predicted by the published coefficients must predict the same to 1e-6.
TEST(FitTest, ReproducesTheShippedCoefficients) {
  const auto profile = DistServeProfile::Load(
      SourcePath("src/cost/testdata/distserve/profiler-a100-80g.distserve.json"));
  ASSERT_TRUE(profile.ok());
  for (const auto& [model, tp] : profile->Keys()) {
    const DistServeCost cost(profile->Find(model, tp).value());
    Matrix rows;
    std::vector<double> measured;
    for (int32_t sequences = 1; sequences <= 64; sequences *= 2) {
      for (int64_t length = 16; length <= 2048; length *= 2) {
        rows.push_back({1, double(sequences) * double(length),
                        double(sequences) * double(length) * double(length)});
        measured.push_back(cost.Seconds({.prefill_tokens = sequences * length,
                                         .prefill_tokens_squared = sequences * length * length,
                                         .prefill_sequences = sequences}));
      }
    }
    const auto fit = FitRelative(rows, measured);
    ASSERT_TRUE(fit.ok());
    EXPECT_LT(fit->errors.max, 1e-6) << model << " TP" << tp;
  }
}

TEST(FitTest, AColumnTwiceCountsOnce) {
  const Matrix rows = {{1, 2, 2}, {1, 3, 3}, {1, 5, 5}, {1, 9, 9}};
  const std::vector<double> measured = {5, 7, 11, 19};  // 1 + 2 x
  const auto fit = FitRelative(rows, measured);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->coefficients[0], 1, 1e-9);
  EXPECT_NEAR(fit->coefficients[1] + fit->coefficients[2], 2, 1e-9);
}

TEST(FitTest, WrongInputIsOneLine) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> one = {1};
  EXPECT_FALSE(FitRelative(Matrix{}, {}).ok());
  EXPECT_FALSE(FitRelative(Matrix{{1}, {2}}, one).ok());
  EXPECT_FALSE(FitRelative(Matrix{{}}, one).ok());
  EXPECT_FALSE(FitRelative(Matrix{{infinity}}, one).ok());
  EXPECT_FALSE(FitRelative(Matrix{{1}, {1, 2}}, std::vector<double>{1, 1}).ok());
  const auto zero = FitRelative(Matrix{{1}, {1}}, std::vector<double>{1, 0});
  ASSERT_FALSE(zero.ok());
  EXPECT_NE(zero.status().message().find("row 2"), std::string::npos);
}

TEST(FitTest, ErrorsAreThoseOfTheDefinition) {
  const std::vector<double> predicted = {1.1, 2, 2.7, 4, 10};
  const std::vector<double> measured = {1, 2, 3, 4, 5};
  const RelativeErrors errors = ErrorsOf(predicted, measured);
  EXPECT_NEAR(errors.p50, 0.1, 1e-12);
  EXPECT_NEAR(errors.max, 1.0, 1e-12);
  EXPECT_NEAR(errors.p95, 0.1 + 0.9 * 0.8, 1e-12);
  EXPECT_NEAR(errors.mean, 0.24, 1e-12);
  EXPECT_EQ(FormatErrors(errors), "P50 10.0 %, P95 82.0 %, max 100.0 % over 5 rows");
}

}  // namespace
}  // namespace millrace::cost
