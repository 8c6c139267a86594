#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace {
namespace {

TEST(Units, ParsesBytes) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("1048576"), 1048576);
  EXPECT_EQ(*ParseBytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("512 MiB"), 512 << 20);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(*ParseBytes("4k"), 4000);
  EXPECT_EQ(*ParseBytes("4ki"), 4096);
  for (const char* bad :
       {"", "GiB", "-1", "1e3", "nan", "2XB", "2GiBB", "9999999TiB", "0x10", " 1"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(Units, ParsesWholeNumbersOnly) {
  EXPECT_EQ(*ParseInt("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*ParseReal("inf"), std::numeric_limits<double>::infinity());
  for (const char* bad : {"", "1x", " 1", "1 ", "99999999999999999999", "1.5"}) {
    EXPECT_FALSE(ParseInt(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseReal("nan").ok());
  EXPECT_FALSE(ParseUint("-1").ok());
}

TEST(Units, FormatsForPeople) {
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(int64_t{200} << 30), "200 GiB");
  EXPECT_EQ(FormatDuration(7.4), "7s");
  EXPECT_EQ(FormatDuration(125), "2m05s");
  EXPECT_EQ(FormatDuration(11520), "3h12m");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
  EXPECT_EQ(FormatCount(123), "123");
  EXPECT_EQ(FormatParameters(1'235'814'400), "1.24 B");
}

}  // namespace
}  // namespace millrace
