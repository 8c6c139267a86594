#include "core/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace millrace {
namespace {

TEST(PortableMath, AnglesGiveTheNearestFloats) {
  std::vector<float> angles{0.0f, -0.0f, 1e-30f, 0.7853982f, 1.5707964f, 3.1415927f, 16777215.0f};
  Rng rng(1);
  for (int i = 0; i < 100'000; ++i) {
    const float size = i % 2 == 0 ? 10.0f : 16e6f;
    angles.push_back(static_cast<float>(rng.Uniform() - 0.5) * 2 * size);
  }
  std::vector<float> cos(angles.size()), sin(angles.size());
  PortableTurns(angles, cos, sin);
  for (size_t i = 0; i < angles.size(); ++i) {
    ASSERT_EQ(cos[i], static_cast<float>(std::cos(double{angles[i]}))) << angles[i];
    ASSERT_EQ(sin[i], static_cast<float>(std::sin(double{angles[i]}))) << angles[i];
  }
}

TEST(PortableMath, LogarithmsAndPowersAreCloseToTheTrueOnes) {
  Rng rng(2);
  for (int i = 0; i < 100'000; ++i) {
    const double x = std::exp2(200 * (rng.Uniform() - 0.5)), exponent = 6 * (rng.Uniform() - 0.5);
    ASSERT_NEAR(PortableLog(x), std::log(x), 3e-16 * std::abs(std::log(x)) + 1e-17) << x;
    ASSERT_NEAR(PortablePow(x, exponent) / std::pow(x, exponent), 1, 2e-14) << x << exponent;
  }
  EXPECT_EQ(PortableLog(1), 0);
  EXPECT_EQ(PortableLog(2), std::log(2.0));
}

TEST(PortableMath, SmallWholePowersAreExact) {
  for (int base = 1; base < 1000; ++base) {
    EXPECT_EQ(PortablePow(base, 0), 1);
    EXPECT_EQ(PortablePow(base, 1), base);
    EXPECT_EQ(PortablePow(base, 3), double{1} * base * base * base);
    EXPECT_EQ(PortablePow(base, -1), 1.0 / base);
  }
  EXPECT_EQ(PortablePow(10, 1000), HUGE_VAL);
  EXPECT_EQ(PortablePow(10, -1000), 0);
}

}  // namespace
}  // namespace millrace
