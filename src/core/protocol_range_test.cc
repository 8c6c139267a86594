#include "core/protocol_range.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ProtocolRange, TheReleaseBeforeAndTheNextAreAccepted) {
  const ProtocolRange mine{6, 7};
  for (const ProtocolRange& its : {ProtocolRange{6, 7}, {5, 6}, {7, 8}, {6, 6}, {1, 9}}) {
    EXPECT_TRUE(CheckProtocol(mine, its).ok()) << ToText(its);
    EXPECT_TRUE(CheckProtocol(its, mine).ok()) << ToText(its);
  }
}

TEST(ProtocolRange, ARefusalNamesBothSidesAndTheCure) {
  EXPECT_EQ(CheckProtocol({6, 7}, {4, 5}).message(),
            "protocol version: this process speaks 6-7, the other 4-5; run releases that are at "
            "most one apart on every machine");
  EXPECT_EQ(CheckProtocol({6, 7}, {8, 8}).code(), StatusCode::kFailedPrecondition);
}

TEST(ProtocolRange, ReadsWhatItWrites) {
  for (const ProtocolRange& range : {ProtocolRange{}, {4, 4}, {4, 5}, {0, 2147483647}}) {
    const auto read = ParseProtocolRange(ToText(range));
    ASSERT_TRUE(read.ok()) << ToText(range);
    EXPECT_EQ(*read, range);
  }
  for (const char* text : {"", "-", "4-", "-4", "5-4", "4-5-6", "4 ", "x", "-1-4", "99999999999"}) {
    EXPECT_FALSE(ParseProtocolRange(text).ok()) << text;
  }
}

}  // namespace
}  // namespace millrace
