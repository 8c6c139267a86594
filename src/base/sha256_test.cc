#include "base/sha256.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// FIPS 180-4, the examples of SHA-256.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(Hex(Sha256Of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256Of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, TakeStartsOver) {
  Sha256 sha256;
  for (int i = 0; i < 3; ++i) {
    sha256.Add("a", 1);
    sha256.Add("bc", 2);
    EXPECT_EQ(sha256.Take(), Sha256Of("abc"));
  }
}

TEST(Sha256, TextsAreToldFromTheirConcatenation) {
  Sha256 two, one;
  two.AddText("ab");
  two.AddText("c");
  one.AddText("abc");
  EXPECT_NE(two.Take(), one.Take());
}

}  // namespace
}  // namespace millrace
