#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

TEST(Crc32c, HasTheValuesOfTheStandards) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);            // the check value in the CRC catalogue
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("456789", Crc32c("123")), Crc32c("123456789"));
}

}  // namespace
}  // namespace millrace
