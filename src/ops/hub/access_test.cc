#include "ops/hub/access.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace millrace::ops {
namespace {

using Variables = std::map<std::string, std::string>;

model::Environment Of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  };
}

class HubAccessTest : public testing::Test {
 protected:
  HubAccessTest() : root_(testing::TempDir() + "/hub_access_test_" + std::to_string(getpid())) {
    std::filesystem::create_directories(root_);
  }
  ~HubAccessTest() override { std::filesystem::remove_all(root_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
    return root_ + "/" + name;
  }
  std::string Token(Variables v) {
    const auto access = ReadHubAccess(Of(std::move(v)));
    return access.ok() ? access->token : access.status().message();
  }
  const std::string root_;
};

TEST_F(HubAccessTest, TheTokenIsThatOfTheEnvironmentThenOfAFile) {
  const std::string file = Write("mine", "of-path\n");
  Write("token", " of-home \n");
  Variables v = {{"HF_HOME", root_}};
  EXPECT_EQ(Token(v), "of-home");
  v["HF_TOKEN_PATH"] = file;
  EXPECT_EQ(Token(v), "of-path");
  v["HF_TOKEN"] = "of-variable";
  EXPECT_EQ(Token(v), "of-variable");
  EXPECT_EQ(Token({{"HF_HOME", root_ + "/none"}}), "");
}

TEST_F(HubAccessTest, ATokenCannotAddAHeader) {
  const std::string error = Token({{"HF_HOME", root_}, {"HF_TOKEN", "a\r\nX-Other: b"}});
  EXPECT_NE(error.find("HF_TOKEN is no token"), std::string::npos) << error;
  EXPECT_EQ(error.find("X-Other"), std::string::npos) << "a secret in a message: " << error;
}

TEST_F(HubAccessTest, TheEndpointNeedsTls) {
  const auto endpoint = [&](const std::string& url) {
    return ReadHubAccess(Of({{"HF_HOME", root_}, {"HF_ENDPOINT", url}}));
  };
  EXPECT_EQ(endpoint("")->endpoint.ToString(), "https://huggingface.co/");
  EXPECT_EQ(endpoint("https://mirror.example/hf")->endpoint.ToString(),
            "https://mirror.example/hf");
  EXPECT_TRUE(endpoint("http://127.0.0.1:8000").ok());
  EXPECT_TRUE(endpoint("http://[::1]:8000").ok());
  EXPECT_NE(endpoint("http://mirror.example").status().message().find("has no TLS"),
            std::string::npos);
  EXPECT_FALSE(endpoint("http://127.0.0.1.example").ok());
  EXPECT_FALSE(endpoint("ftp://mirror.example").ok());
}

TEST_F(HubAccessTest, OtherVariablesAreChecked) {
  const auto with = [&](const char* name, const std::string& value) {
    return ReadHubAccess(Of({{"HF_HOME", root_}, {name, value}}));
  };
  const std::string file = Write("ca.pem", "x");
  EXPECT_EQ(with("SSL_CERT_FILE", file)->authorities, file);
  EXPECT_EQ(with("CURL_CA_BUNDLE", file)->authorities, file);
  EXPECT_NE(with("SSL_CERT_FILE", "/none").status().message().find("SSL_CERT_FILE"),
            std::string::npos);
  EXPECT_EQ(with("HF_HUB_DOWNLOAD_TIMEOUT", "7")->stall, Duration::Seconds(7));
  EXPECT_FALSE(with("HF_HUB_DOWNLOAD_TIMEOUT", "0").ok());
  EXPECT_FALSE(with("HF_HUB_DOWNLOAD_TIMEOUT", "soon").ok());
}

TEST(HubAccess, OfflineIsWrittenInSeveralWays) {
  for (const char* yes : {"1", "true", "YES", "On"})
    EXPECT_TRUE(IsOffline(Of({{"HF_HUB_OFFLINE", yes}})));
  for (const char* no : {"0", "false", ""}) EXPECT_FALSE(IsOffline(Of({{"HF_HUB_OFFLINE", no}})));
  EXPECT_FALSE(IsOffline(Of({})));
}

TEST(HubAccess, AnOriginIsSchemeHostAndPort) {
  const net::Url url = {.https = true, .host = "Hub.example", .port = 443};
  EXPECT_TRUE(SameOrigin(url, {.https = true, .host = "hub.example", .port = 443}));
  EXPECT_FALSE(SameOrigin(url, {.https = false, .host = "hub.example", .port = 443}));
  EXPECT_FALSE(SameOrigin(url, {.https = true, .host = "hub.example", .port = 444}));
  EXPECT_FALSE(SameOrigin(url, {.https = true, .host = "hub.example.evil", .port = 443}));
}

}  // namespace
}  // namespace millrace::ops
