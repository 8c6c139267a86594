#include "serve/http/gzip_body.h"

#include <gtest/gtest.h>

#include "serve/testing/gzip.h"

namespace millrace::serve {
namespace {

TEST(GzipBody, Inflates) {
  for (const std::string& text :
       {std::string(), std::string("a"), std::string(300'000, 'x'), std::string("\0\xff", 2)}) {
    auto plain = InflateGzip(Gzip(text), text.size());
    ASSERT_TRUE(plain.ok()) << plain.status().ToString();
    EXPECT_EQ(*plain, text);
  }
  EXPECT_EQ(*InflateGzip(Gzip("one ") + Gzip("") + Gzip("two"), 100), "one two") << "members";
}

TEST(GzipBody, ABombEndsAtTheLimit) {
  const std::string bomb = Gzip(std::string(64 << 20, '\0'));
  ASSERT_LT(bomb.size(), 100'000u);
  const Status status = InflateGzip(bomb, 1 << 20).status();
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_NE(status.message().find("1048576 bytes"), std::string::npos) << status.message();
  std::string members;
  for (int i = 0; i < 10; ++i) members += Gzip("0123456789");
  EXPECT_TRUE(InflateGzip(members, 100).ok());
  EXPECT_EQ(InflateGzip(members, 99).status().code(), StatusCode::kTooLarge);
}

TEST(GzipBody, DamageIsTheClients) {
  const std::string good = Gzip("some text that is long enough");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(InflateGzip(good.substr(0, size), 1000).status().code(), StatusCode::kInvalidArgument)
        << size;
  }
  for (const std::string& bad :
       {std::string("plain text"), good + "more", good + good.substr(0, 5), Deflate("zlib")}) {
    EXPECT_EQ(InflateGzip(bad, 1000).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  std::string checksum = good;
  checksum[checksum.size() - 6] ^= 1;
  EXPECT_FALSE(InflateGzip(checksum, 1000).ok());
}

TEST(GzipBody, HasTwoNames) {
  for (const char* name : {"gzip", "GZip", "x-gzip"}) EXPECT_TRUE(IsGzip(name));
  for (const char* name : {"", "br", "deflate", "gzip, gzip", "gzip "}) EXPECT_FALSE(IsGzip(name));
}

}  // namespace
}  // namespace millrace::serve
