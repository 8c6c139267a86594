#include "net/url.h"

#include <gtest/gtest.h>

namespace millrace::net {
namespace {

TEST(Url, IsParsedIntoItsParts) {
  const Url url = *ParseUrl("http://Example-1.org:8000/v1/x?y=1");
  EXPECT_FALSE(url.https);
  EXPECT_EQ(url.host, "Example-1.org");
  EXPECT_EQ(url.port, 8000);
  EXPECT_EQ(url.target, "/v1/x?y=1");
  EXPECT_EQ(ParseUrl("https://h")->port, 443);
  EXPECT_EQ(ParseUrl("https://h")->target, "/");
  EXPECT_EQ(ParseUrl("http://h?q")->target, "/?q");
  EXPECT_EQ(ParseUrl("http://[::1]:81/")->host, "::1");
  EXPECT_EQ(ParseUrl("http://[fe80::1%25eth0]:81/")->host, "fe80::1%eth0");
  EXPECT_EQ(ParseUrl("http://[fe80::1%eth0]/")->host, "fe80::1%eth0");
}

TEST(Url, RoundTrips) {
  for (const char* text : {"http://a/", "https://a:444/b?c", "http://[fe80::1]/",
                           "http://[::1]:8000/v1", "http://[fe80::1%25eth0]:8000/"}) {
    EXPECT_EQ(ParseUrl(text)->ToString(), text);
  }
  EXPECT_EQ(ParseUrl("http://h:80/")->HostHeader(), "h");
  EXPECT_EQ(ParseUrl("http://h:443/")->HostHeader(), "h:443");
  EXPECT_EQ(ParseUrl("http://[fe80::1%25eth0]:81/")->HostHeader(), "[fe80::1]:81");
}

TEST(Url, JoinsPathsWithOneSlash) {
  EXPECT_EQ(ParseUrl("http://h")->Join("/v1/models").target, "/v1/models");
  EXPECT_EQ(ParseUrl("http://h/v1/")->Join("models").target, "/v1/models");
  EXPECT_EQ(ParseUrl("http://h/v1?q")->Join("/models?a").target, "/v1/models?a");
}

TEST(Url, RejectsUnsupportedUrls) {
  for (const char* bad : {"",
                          "h",
                          "h:80",
                          "ftp://h",
                          "http:/h",
                          "http://",
                          "http://:80",
                          "http://h:",
                          "http://h:0",
                          "http://h:65536",
                          "http://h:8x",
                          "http://u@h",
                          "http://u:p@h/",
                          "http://h/#f",
                          "http://h /",
                          "http://h\r\n/",
                          "http://[::1",
                          "http://[x]",
                          "http://[127.0.0.1]",
                          "http://[::1%25]",
                          "http://[]",
                          "http://[::1]x",
                          "http://h\\@i",
                          "http://\xc3\xa9/"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseUrl("http://h/" + std::string(kUrlBytesMax, 'x')).ok());
}

}  // namespace
}  // namespace millrace::net
