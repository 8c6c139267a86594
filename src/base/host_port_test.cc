#include "base/host_port.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

TEST(HostPort, HostsInEverySpelling) {
  for (const char* same : {"localhost", "0.0.0.0", "10.0.0.2", "::", "::1", "fe80::1%eth0",
                           "head-0.cluster.local", "a_b"}) {
    EXPECT_EQ(ParseHost(same).value(), same);
  }
  EXPECT_EQ(ParseHost("[::1]").value(), "::1");
  EXPECT_EQ(ParseHost("[::]").value(), "::");
  EXPECT_EQ(ParseHost("[fe80::1%eth0]").value(), "fe80::1%eth0");
  EXPECT_EQ(ParseHost("*").value(), "0.0.0.0");
}

TEST(HostPort, WhatIsNoHostIsRefused) {
  for (const char* bad :
       {"", "[", "]", "[]", "[::1", "::1]", "[localhost]", "[127.0.0.1]", ":1", "127.0.0.1:80",
        "a b", "http://a", "a/b", "::1%", "::1%a b", ":::1", "user@host", "host\n"}) {
    EXPECT_EQ(ParseHost(bad).status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(ParseHost(bad).status().message().find('\n'), std::string::npos);
  }
  EXPECT_FALSE(ParseHost(std::string(256, 'a')).ok());
}

TEST(HostPort, AnAddressIsPrintedAsItIsRead) {
  for (const char* same : {"127.0.0.1:0", "[::1]:7000", "head:65535", "0.0.0.0:7000",
                           "[fe80::1%eth0]:7000", "[::]:1"}) {
    EXPECT_EQ(ParseHostPort(same).value().ToString(), same);
  }
  const HostPort bare = ParseHostPort("::1:7000").value();
  EXPECT_EQ(bare.host, "::1");
  EXPECT_EQ(bare.port, 7000);
  EXPECT_EQ(bare.ToString(), "[::1]:7000");
  EXPECT_EQ(ParseHostPort("*:7000").value().ToString(), "0.0.0.0:7000");
}

TEST(HostPort, WhatIsNoAddressIsRefusedWithTheCause) {
  const auto why = [](const char* text) { return ParseHostPort(text).status().message(); };
  for (const char* bad : {"", "host", "[::1]", "host:", ":7000", ":"}) {
    EXPECT_NE(why(bad).find("must be HOST:PORT"), std::string::npos) << bad;
  }
  for (const char* bad : {"host:65536", "host:-1", "host:x", "host:80x", "host: 80", "[::1]:99999",
                          "host:99999999999999999999"}) {
    EXPECT_NE(why(bad).find("must have a port from 0 to 65535"), std::string::npos) << bad;
  }
  for (const char* bad : {"[::1:7000", "a b:80", "[x]:80"}) {
    EXPECT_NE(why(bad).find("must be a host"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace millrace
