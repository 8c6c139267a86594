#include "core/portable_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace millrace {
namespace {

// pi / 2 and log 2 in parts. Whole numbers of up to 24 and 20 bits times all but the last part are
// exact.
constexpr double kHalfPi[] = {0x1.921fb54p+0, 0x1.10b4612p-30, -0x1.676733ae8fe48p-60};
constexpr double kLog2[] = {0x1.62e42ffp-1, -0x1.718432a1b0e26p-35};
constexpr double kRootOfHalf = 0x1.6a09e667f3bcdp-1;

constexpr double kNearest = 0x1.8p52;  // added, it leaves the nearest integer in the lowest bits
double Rounded(double x) { return (x + kNearest) - kNearest; }

// 1 / first!, 1 / (first + 2)!, ... with alternating signs: Taylor's series of a sine or cosine.
template <int kFirst>
constexpr std::array<double, 9> Terms() {
  std::array<double, 9> terms{};
  double term = 1;
  for (int i = 0; i < 9; ++i) {
    terms[i] = term;
    term /= -(kFirst + 2.0 * i + 1) * (kFirst + 2.0 * i + 2);
  }
  return terms;
}

template <int kFirst>
double Series(double square) {
  constexpr auto kTerms = Terms<kFirst>();
  double sum = kTerms[8];
  for (size_t i = 8; i-- > 0;) sum = kTerms[i] + square * sum;
  return sum;
}

// Without branches, so that the compiler computes several at a time.
void Turn(float angle, float& cos, float& sin) {
  const double shifted = angle * (2 / 3.14159265358979323846) + kNearest;
  const double quarters = shifted - kNearest;
  double x = angle;  // at most pi / 4 of it are left
  for (const double part : kHalfPi) x -= quarters * part;
  const double of_sin = x * Series<1>(x * x), of_cos = Series<0>(x * x);
  const auto quarter = std::bit_cast<uint64_t>(shifted);
  const double c = quarter & 1 ? of_sin : of_cos, s = quarter & 1 ? of_cos : of_sin;
  cos = static_cast<float>((quarter + 1) & 2 ? -c : c);
  sin = static_cast<float>(quarter & 2 ? -s : s);
}

}  // namespace

void PortableTurns(std::span<const float> angles, std::span<float> cos, std::span<float> sin) {
  MR_CHECK(cos.size() == angles.size() && sin.size() == angles.size());
  float most = 0;
  for (float angle : angles) most = std::max(most, angle < 0 ? -angle : angle);
  MR_CHECK(most < 0x1p24f) << most;
  for (size_t i = 0; i < angles.size(); ++i) Turn(angles[i], cos[i], sin[i]);
}

namespace {

double Exp(double x) {
  if (x > 709) return std::numeric_limits<double>::infinity();
  if (x < -708) return 0;
  const double n = Rounded(x / (kLog2[0] + kLog2[1]));
  const double rest = (x - n * kLog2[0]) - n * kLog2[1];
  double sum = 1;
  for (int i = 14; i > 0; --i) sum = 1 + sum * rest / i;
  const auto power = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  return sum * std::bit_cast<double>(power);
}

}  // namespace

double PortableLog(double x) {
  MR_CHECK(x >= std::numeric_limits<double>::min() && x <= std::numeric_limits<double>::max()) << x;
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)).
  const auto bits = std::bit_cast<uint64_t>(x);
  int n = static_cast<int>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1022} << 52);
  if (m < kRootOfHalf) {
    m *= 2;
    --n;
  }
  // log m = 2 (s + s^3 / 3 + s^5 / 5 + ...).
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int i = 23; i > 1; i -= 2) sum = square * (sum + 1.0 / i);
  return n * kLog2[0] + (n * kLog2[1] + 2 * (s + s * sum));
}

// Whole powers are products, so that small ones are exact.
double PortablePow(double base, double exponent) {
  constexpr double kMostWhole = 64;
  const double whole = exponent > -kMostWhole && exponent < kMostWhole ? Rounded(exponent) : 0;
  double product = 1;
  for (double i = 0; i < (whole < 0 ? -whole : whole); ++i) product *= base;
  const double rest = exponent - whole;
  const double power = rest == 0 ? 1 : Exp(rest * PortableLog(base));
  return whole < 0 ? power / product : power * product;
}

}  // namespace millrace
