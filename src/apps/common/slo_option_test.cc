#include "apps/common/slo_option.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

std::string ErrorOf(const std::vector<std::string>& texts) {
  const auto limits = ParseSlo(texts);
  return limits.ok() ? "" : limits.status().message();
}

TEST(Slo, ReadsLimitsWithTheirUnits) {
  const auto limits = ParseSlo({"ttft=2s", "tpot=80 ms", "attainment=95%"});
  ASSERT_TRUE(limits.ok()) << limits.status().ToString();
  EXPECT_DOUBLE_EQ(*limits->ttft_s, 2);
  EXPECT_DOUBLE_EQ(*limits->tpot_s, 0.08);
  EXPECT_DOUBLE_EQ(limits->share(), 0.95);
  EXPECT_DOUBLE_EQ(ParseSlo({"tpot=80ms"})->share(), kAttainmentDefault);
  EXPECT_FALSE(ParseSlo({"tpot=80ms"})->ttft_s);
}

TEST(Slo, ErrorsNameTheCure) {
  EXPECT_EQ(ErrorOf({"ttft:250"}),
            "must be ttft=TIME with its unit, such as ttft=250ms, got 'ttft:250'");
  EXPECT_EQ(ErrorOf({"attainment:95"}),
            "must be attainment=SHARE with its unit, such as attainment=95%, got 'attainment:95'");
  EXPECT_EQ(ErrorOf({"itl=5ms"}),
            "must be ttft=TIME, tpot=TIME or attainment=SHARE, such as ttft=2s tpot=80ms "
            "attainment=90%, got 'itl=5ms'");
  EXPECT_EQ(ErrorOf({"tpot=5"}),
            "tpot must have a unit (us, ms, s, min, h), such as 250 ms, got '5'");
  EXPECT_EQ(ErrorOf({"attainment=120%"}), "attainment must be in [0 %, 100 %], got '120%'");
  EXPECT_EQ(ErrorOf({"ttft=1s", "ttft=2s"}), "has ttft twice");
}

TEST(Slo, AFileFillsWhatIsNotGiven) {
  const LatencyLimits file{.ttft_s = 1, .tpot_s = 0.1, .attainment = 0.99};
  const auto limits = CompleteSlo(*ParseSlo({"tpot=50ms", "attainment=80%"}), file);
  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->ttft_s, 1);
  EXPECT_EQ(limits->tpot_s, 0.05);
  EXPECT_EQ(limits->share(), 0.8);
  EXPECT_TRUE(CompleteSlo({}, {}).ok());
  EXPECT_FALSE(CompleteSlo({.attainment = 0.8}, {}).ok());
}

TEST(Slo, LimitsAreKeptAtTheLimitAndWithoutOne) {
  const LatencyLimits limits{.ttft_s = 1};
  EXPECT_TRUE(limits.KeepsTtft(1));
  EXPECT_FALSE(limits.KeepsTtft(1.001));
  EXPECT_TRUE(limits.KeepsTpot(1e9));
}

}  // namespace
}  // namespace millrace::apps
