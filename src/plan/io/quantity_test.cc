#include "plan/io/quantity.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace millrace::plan {
namespace {

double Value(Quantity kind, std::string_view text) {
  const auto value = ParseQuantity(kind, text);
  EXPECT_TRUE(value.ok()) << text << ": " << value.status().ToString();
  return value.ok() ? *value : -1;
}
std::string Error(Quantity kind, std::string_view text) {
  return ParseQuantity(kind, text).status().message();
}

TEST(QuantityTest, ReadsNumbersWithUnits) {
  EXPECT_EQ(Value(Quantity::kMemory, "40 GB"), 40e9);
  EXPECT_EQ(Value(Quantity::kMemory, "24GiB"), 24.0 * (1 << 30));
  EXPECT_EQ(Value(Quantity::kBandwidth, "10 Gbit/s"), 1.25e9);
  EXPECT_EQ(Value(Quantity::kBandwidth, "10 Gbps"), 1.25e9);
  EXPECT_EQ(Value(Quantity::kBandwidth, "10 GB/s"), 1e10);
  EXPECT_EQ(Value(Quantity::kLatency, "0.3 ms"), 0.3 * 1e-3);
  EXPECT_EQ(Value(Quantity::kLatency, "0 us"), 0);
  EXPECT_EQ(Value(Quantity::kPrice, " 3.9  USD/h "), 3.9);
  EXPECT_EQ(Value(Quantity::kDuration, "250 ms"), 0.25);
  EXPECT_EQ(Value(Quantity::kDuration, "2 h"), 7200);
  EXPECT_EQ(Value(Quantity::kRate, "90 req/min"), 1.5);
  EXPECT_EQ(Value(Quantity::kTokens, "512 tokens"), 512);
  EXPECT_DOUBLE_EQ(Value(Quantity::kShare, "90 %"), 0.9);
}

TEST(QuantityTest, ErrorsSayWhatIsAllowed) {
  EXPECT_EQ(Error(Quantity::kMemory, "40"),
            "must have a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 40 GB, got '40'");
  EXPECT_EQ(Error(Quantity::kLatency, "3 mss"),
            "has the unknown unit 'mss'; known: ns, us, ms, s; did you mean ms?");
  EXPECT_EQ(Error(Quantity::kLatency, "fast"),
            "must be a number with its unit, such as 0.3 ms, got 'fast'");
  EXPECT_EQ(Error(Quantity::kPrice, "-1 USD/h"),
            "must be in [0 USD/h, 10000 USD/h], got '-1 USD/h'");
  EXPECT_EQ(Error(Quantity::kBandwidth, "0 Gbit/s"),
            "must be in [1 kbit/s, 100 Tbit/s], got '0 Gbit/s'");
  EXPECT_EQ(Error(Quantity::kBandwidth, "1e300 GB/s"),
            "must be in [1 kbit/s, 100 Tbit/s], got '1e300 GB/s'");
  for (const char* text : {"", " ", "nan GB", "inf GB", "1e999 GB", "GB", "1 2 GB", "--1 GB"}) {
    EXPECT_FALSE(ParseQuantity(Quantity::kMemory, text).ok()) << text;
  }
}

TEST(QuantityTest, WritesTheLargestUnit) {
  EXPECT_EQ(FormatQuantity(Quantity::kBandwidth, 1.25e9), "10 Gbit/s");
  EXPECT_EQ(FormatQuantity(Quantity::kMemory, 40e9), "40 GB");
  EXPECT_EQ(FormatQuantity(Quantity::kLatency, 0.05), "50 ms");
  EXPECT_EQ(FormatQuantity(Quantity::kPrice, 0), "0 USD/h");
}

TEST(QuantityTest, FlowsReadBackExactly) {
  Rng rng(7);
  for (int i = 0; i < 1000; ++i) {
    const double flow = rng.Uniform() * 1e6;
    EXPECT_EQ(Value(Quantity::kFlow, FormatQuantity(Quantity::kFlow, flow)), flow);
  }
}

}  // namespace
}  // namespace millrace::plan
