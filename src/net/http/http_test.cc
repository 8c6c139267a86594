#include "net/http/http.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace millrace::net {
namespace {

TEST(Header, IsFoundInAnyCase) {
  HttpRequest request;
  request.headers = {{"Content-Type", "a"}, {"X-Id", "first"}, {"x-id", "second"}};
  EXPECT_EQ(request.Header("x-ID"), "first");
  EXPECT_EQ(request.Header("X-I"), std::nullopt);
}

TEST(Target, IsDecodedOnceAndSplit) {
  EXPECT_EQ(ParseTarget("/v1/models/a%2Fb?x=%20")->path, "/v1/models/a/b");
  EXPECT_EQ(ParseTarget("/v1/models/a%2Fb?x=%20")->query, "x=%20");
  EXPECT_EQ(ParseTarget("/%2541")->path, "/%41");
  EXPECT_EQ(ParseTarget("//v1/../x")->path, "//v1/../x");
  EXPECT_EQ(ParseTarget("http://host:1/a?b")->path, "/a");
  EXPECT_EQ(ParseTarget("http://host")->path, "/");
  EXPECT_EQ(ParseTarget("http://host?q")->query, "q");
  EXPECT_EQ(ParseTarget("*")->path, "*");
  EXPECT_EQ(ParseTarget("/%C3%A9")->path, "/\xc3\xa9");
}

TEST(Target, RejectsAmbiguousTargets) {
  for (const char* bad : {"", "v1", "/%", "/%2", "/%zz", "/%00", "/a%0Ab", "/%7f", "/%ff",
                          "/%c0%af", "/%ed%a0%80", "/%f4%90%80%80", "/%e2%82", "ftp://x/"}) {
    EXPECT_FALSE(ParseTarget(bad).ok()) << bad;
  }
}

TEST(Query, IsSplitIntoPairs) {
  const HttpHeaders expected = {{"a", "1"}, {"b c", "x y!"}, {"d", ""}, {"e", "="}};
  EXPECT_EQ(*ParseQuery("a=1&b+c=x+y%21&&d&e=="), expected);
  EXPECT_TRUE(ParseQuery("")->empty());
  EXPECT_FALSE(ParseQuery("a=%G0").ok());
  std::string many;
  for (size_t i = 0; i <= kQueryPairsMax; ++i) many += "a&";
  EXPECT_FALSE(ParseQuery(many).ok());
}

TEST(ErrorBody, HasOpenAisShapeAndSurvivesAnyText) {
  const HttpResponse response = ErrorResponse(400, "bad \"x\" \xff");
  const auto body = ParseJson(response.body);
  ASSERT_TRUE(body.ok());
  const Json& error = (*body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_TRUE(error["param"].is_null());
  EXPECT_TRUE(error["code"].is_null());
  EXPECT_EQ(error["message"], "bad \"x\" \xef\xbf\xbd");
}

}  // namespace
}  // namespace millrace::net
