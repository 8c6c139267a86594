#include "cluster/store/store.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

TEST(Store, PrefixEndIsTheFirstKeyBehindAllWithThePrefix) {
  EXPECT_EQ(PrefixEnd("a"), "b");
  EXPECT_EQ(PrefixEnd("/x/"), "/x0");
  EXPECT_EQ(PrefixEnd("a\xff\xff"), "b");
  EXPECT_EQ(PrefixEnd("\x7f"), "\x80");
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
  EXPECT_EQ(PrefixEnd(""), "");
}

TEST(Store, LimitsAreRefusedWithTheirNumbers) {
  EXPECT_TRUE(CheckStoreKey(std::string(kStoreKeyBytesMax, 'k')).ok());
  EXPECT_EQ(CheckStoreKey(std::string(kStoreKeyBytesMax + 1, 'k')).message(),
            "a store key has at most 512 bytes, but this one has 513");
  EXPECT_FALSE(CheckStoreKey("").ok());
  EXPECT_TRUE(CheckStoreValue(std::string(kStoreValueBytesMax, 'v')).ok());
  EXPECT_FALSE(CheckStoreValue(std::string(kStoreValueBytesMax + 1, 'v')).ok());
  EXPECT_TRUE(CheckLeaseTtl(kLeaseTtlMax).ok());
  EXPECT_FALSE(CheckLeaseTtl(Duration{}).ok());
  EXPECT_FALSE(CheckLeaseTtl(Duration::Nanos(-1)).ok());
  EXPECT_FALSE(CheckLeaseTtl(kLeaseTtlMax + Duration::Nanos(1)).ok());
}

TEST(Store, AClusterNameHasNoSlash) {
  EXPECT_TRUE(CheckClusterName("lab-2_b.x").ok());
  for (const char* bad : {"", "a/b", "a b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE(CheckClusterName(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckClusterName(std::string(65, 'a')).ok());
}

}  // namespace
}  // namespace millrace::cluster
