// How clients spell a path: with stray slashes, and below the path of a reverse proxy. Access is
// that of the route, whatever the spelling.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/http/router.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using PathHeaders = std::vector<std::pair<std::string, std::string>>;
const PathHeaders kFirstKey = {{"Authorization", "Bearer first-key"}};

int StatusAt(TestServer& server, const std::string& method, const std::string& path,
             const PathHeaders& headers = {}, const std::string& body = "{}") {
  auto reply = server.Start(method, path, body, headers);
  EXPECT_TRUE(reply->WaitDone()) << path;
  return reply->status();
}

TestServerOptions Below(const std::string& root, bool keys = false) {
  TestServerOptions options;
  options.service.root_path = root;
  if (keys) options.service.api_keys = *ApiKeys::Create({"first-key"});
  return options;
}

TEST(Paths, StraySlashesAreLeftOut) {
  EXPECT_EQ(WithoutStraySlashes("/v1//chat/completions/"), "/v1/chat/completions");
  EXPECT_EQ(WithoutStraySlashes("///v1/models///"), "/v1/models");
  EXPECT_EQ(WithoutStraySlashes("/"), "/");
  EXPECT_EQ(WithoutStraySlashes("//"), "/");
  EXPECT_EQ(WithoutStraySlashes("*"), "*");
  EXPECT_EQ(BelowRoot("/llm/v1", "/llm"), "/v1");
  EXPECT_EQ(BelowRoot("/llm", "/llm"), "/");
  EXPECT_EQ(BelowRoot("/llmv1", "/llm"), std::nullopt);
  EXPECT_EQ(BelowRoot("/v1", ""), std::nullopt);
}

TEST(Paths, ARequestIsAnsweredAsMeant) {
  TestServer server;
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  for (const char* path :
       {"/v1//completions", "/v1/completions/", "//v1/completions", "//v1///completions//"}) {
    EXPECT_EQ(StatusAt(server, "POST", path, {}, body), 200) << path;
  }
  for (const char* path : {"//v1/models", "/v1/models/", "/v1//models", "/health/", "//metrics",
                           "/v1/models//tiny/"}) {
    EXPECT_EQ(StatusAt(server, "GET", path), 200) << path;
  }
  for (const char* path : {"/v1/./models", "/v1/../v1/models", "/V1/models", "/v1/models/../models",
                           "/v1\\models", "/v1/%2fmodels"}) {
    EXPECT_EQ(StatusAt(server, "GET", path), 404) << path;
  }
  EXPECT_EQ(StatusAt(server, "GET", "/v1/completions/"), 405);
}

TEST(Paths, NoSpellingAvoidsAKey) {
  for (const char* root : {"", "/llm"}) {
    TestServer server(Below(root, true));
    const std::string at = root;
    for (const std::string& path :
         {at + "//v1/models", at + "/v1/models/", "/" + at + "/v1//models", at + "/metrics/",
          at + "//health/../v1/models", at + "/health//v1/models", at + "/nothing/"}) {
      EXPECT_EQ(StatusAt(server, "GET", path), 401) << path;
    }
    EXPECT_EQ(StatusAt(server, "GET", at + "//v1/models/", kFirstKey), 200);
    EXPECT_EQ(StatusAt(server, "GET", at + "//health/"), 200);
  }
}

TEST(Paths, NoSpellingReachesTheAdminRoutes) {
  TestServer server(Below("/llm"));
  for (const char* path : {"//cluster/status", "/cluster//status", "/cluster/status/",
                           "/llm/cluster/status", "//llm//cluster//status//", "/debug//requests/1",
                           "/llm/debug/requests", "/llm/cluster", "/llm/llm/cluster/status"}) {
    EXPECT_EQ(StatusAt(server, "GET", path), 404) << path;
  }
  server.endpoint = Endpoint::kAdminSocket;
  EXPECT_EQ(StatusAt(server, "GET", "//debug/requests/"), 200);
  EXPECT_EQ(StatusAt(server, "GET", "/llm/debug/requests"), 404) << "the path is the proxy's";
}

TEST(Paths, RoutesAreFoundWithTheRootPathAndWithoutIt) {
  TestServer server(Below("/team/llm"));
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  EXPECT_EQ(StatusAt(server, "POST", "/team/llm/v1/completions", {}, body), 200);
  EXPECT_EQ(StatusAt(server, "POST", "/v1/completions", {}, body), 200);
  EXPECT_EQ(StatusAt(server, "GET", "/team/llm/health"), 200);
  for (const char* path :
       {"/team/v1/models", "/team/llmv1/models", "/team/llm/team/llm/v1/models"}) {
    EXPECT_EQ(StatusAt(server, "GET", path), 404) << path;
  }
  EXPECT_EQ(server.Get("/team/llm/openapi.json")["servers"], Json::array({{{"url", "/team/llm"}}}));
}

// A proxy may offer the server below a path that is also the beginning of the server's own routes.
TEST(Paths, ARootPathDoesNotHideRoutes) {
  TestServer server(Below("/v1"));
  EXPECT_EQ(StatusAt(server, "GET", "/v1/models"), 200);
  EXPECT_EQ(StatusAt(server, "GET", "/v1/v1/models"), 200);
  EXPECT_EQ(StatusAt(server, "GET", "/v1/health"), 200);
}

TEST(Paths, WithoutARootPathTheDocumentNamesNoServer) {
  TestServer server;
  EXPECT_FALSE(server.Get("/openapi.json").contains("servers"));
}

TEST(EmbeddingsOnly, RequestsToGenerateAreRefused) {
  TestServerOptions options;
  options.generates = false;
  TestServer server(options);
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"({"prompt": "a"})"},
           {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"},
           {"/v1/messages", R"({"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]})"},
           {"/v1/responses", R"({"input": "a"})"},
           {"/api/chat", R"({"messages": [{"role": "user", "content": "a"}]})"},
           {"/api/generate", R"({"prompt": "a"})"}}) {
    auto reply = server.Start("POST", path, body);
    ASSERT_TRUE(reply->WaitDone()) << path;
    EXPECT_EQ(reply->status(), 400) << path;
    EXPECT_NE(reply->body().find("embeddings only"), std::string::npos) << reply->body();
  }
  EXPECT_EQ(StatusAt(server, "POST", "/v1/embeddings", {}, R"({"input": "a"})"), 200);
  EXPECT_EQ(StatusAt(server, "POST", "/tokenize", {}, R"({"prompt": "a"})"), 200);
}

}  // namespace
}  // namespace millrace::serve
