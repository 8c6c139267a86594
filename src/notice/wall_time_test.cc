#include "notice/wall_time.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/rng.h"
#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

TEST(WallTime, Rfc3339) {
  EXPECT_EQ(ParseRfc3339("1970-01-01T00:00:00Z"), WallTime{0});
  EXPECT_EQ(ParseRfc3339("2017-09-18T08:22:00Z"), WallTime{1505722920});
  EXPECT_EQ(ParseRfc3339("2017-09-18t08:22:00.123456z"), WallTime{1505722920});
  EXPECT_EQ(ParseRfc3339("2017-09-18 10:22:00+02:00"), WallTime{1505722920});
  EXPECT_EQ(ParseRfc3339("2017-09-18T03:52:00-04:30"), WallTime{1505722920});
  EXPECT_EQ(ParseRfc3339("2024-02-29T23:59:60Z"), WallTime{1709251200});
  for (const char* text :
       {"", "soon", "2017-09-18", "2017-09-18T08:22:00", "2017-09-18T08:22Z", "2017-9-18T08:22:00Z",
        "2017-13-01T00:00:00Z", "2023-02-29T00:00:00Z", "2017-09-18T24:00:00Z",
        "2017-09-18T08:60:00Z", "2017-09-18T08:22:61Z", "2017-09-18T08:22:00Z ",
        "2017-09-18T08:22:00.Z", "2017-09-18T08:22:00+24:00", "1969-12-31T23:59:59Z",
        "-017-09-18T08:22:00Z", "2017-09-18X08:22:00Z", "02017-09-18T08:22:00Z"}) {
    EXPECT_EQ(ParseRfc3339(text), std::nullopt) << text;
  }
}

TEST(WallTime, Rfc1123) {
  EXPECT_EQ(ParseRfc1123("Mon, 19 Sep 2016 18:29:47 GMT"), WallTime{1474309787});
  EXPECT_EQ(ParseRfc1123("21 Jan 2019 09:00:43 GMT"), WallTime{1548061243}) << "AWS";
  EXPECT_EQ(ParseRfc1123("1 Jan 2019 09:00:43 GMT"), WallTime{1546333243});
  for (const char* text :
       {"", "Mon, 19 Sep 2016 18:29:47", "Mon, 19 Sep 16 18:29:47 GMT", "19 Sebt 2016 18:29:47 GMT",
        "Mon 19 Sep 2016 18:29:47 GMT", "Mon, 32 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:47 CET", "Mon, 19 Sep 2016 18:29:47 GMT and more"}) {
    EXPECT_EQ(ParseRfc1123(text), std::nullopt) << text;
  }
}

// Against the C library.
TEST(WallTime, RandomTimes) {
  Rng rng(3);
  for (int i = 0; i < 20'000; ++i) {
    const WallTime time{rng.Between(0, 253402300799)};
    ASSERT_EQ(ParseRfc3339(testing::Rfc3339(time)), time);
    ASSERT_EQ(ParseRfc1123(testing::Rfc1123(time)), time);
  }
}

}  // namespace
}  // namespace millrace::notice
