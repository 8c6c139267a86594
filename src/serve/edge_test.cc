// Behaviour common to all routes: keys, methods, CORS, request ids, states; and the small GET
// routes.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "serve/testing/fixtures.h"
#include "serve/testing/gzip.h"
#include "serve/testing/wrapped_generator.h"

namespace millrace::serve {
namespace {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct RouteCase {
  const char* method;
  const char* path;
  bool open;
};

const RouteCase kRoutes[] = {
    {"POST", "/v1/completions", false}, {"POST", "/v1/chat/completions", false},
    {"GET", "/v1/models", false},       {"GET", "/v1/models/tiny", false},
    {"POST", "/tokenize", false},       {"POST", "/detokenize", false},
    {"GET", "/health", true},           {"GET", "/ready", true},
    {"GET", "/version", true},          {"GET", "/metrics", false},
};
// The main port serves none of these.
const RouteCase kAdminRoutes[] = {
    {"GET", "/debug/requests", false},   {"GET", "/debug/requests/1", false},
    {"GET", "/cluster/status", false},   {"POST", "/cluster/plan", false},
    {"POST", "/cluster/drain", false},   {"POST", "/cluster/migrate", false},
    {"GET", "/cluster/machines", false},
};

TestServerOptions WithKeys() {
  TestServerOptions options;
  options.service.api_keys = *ApiKeys::Create({"first-key", "second-key"});
  return options;
}

int StatusOf(TestServer& server, const std::string& method, const std::string& path,
             const HeaderList& headers = {}) {
  auto reply = server.Start(method, path, "{}", headers);
  EXPECT_TRUE(reply->WaitDone());
  return reply->status();
}

TEST(Keys, OnlyOpenRoutesWorkWithoutAKey) {
  TestServer server(WithKeys());
  for (const RouteCase& route : kRoutes) {
    for (const HeaderList& headers :
         std::vector<HeaderList>{{},
                                 {{"Authorization", "Bearer wrong"}},
                                 {{"Authorization", "Bearer first-ke"}},
                                 {{"Authorization", "Bearer first-key2"}},
                                 {{"Authorization", "Bearer "}},
                                 {{"Authorization", "first-key"}},
                                 {{"Authorization", "Basic first-key"}},
                                 {{"X-Api-Key", "wrong"}},
                                 {{"api-key", "first-ke"}},
                                 {{"X-Api-Key", "Bearer first-key"}},
                                 {{"Authorization", "Bearer wrong"}, {"X-Api-Key", "first-key"}},
                                 {{"Authorization", ""}, {"api-key", "first-key"}},
                                 {{"Host", "t/health?x="}},
                                 {{"Host", "/health"}, {"X-Forwarded-Path", "/health"}}}) {
      const int status = StatusOf(server, route.method, route.path, headers);
      EXPECT_EQ(status == 401, !route.open) << route.path << " " << status;
    }
    for (const char* key : {"Bearer first-key", "bearer second-key"}) {
      EXPECT_NE(StatusOf(server, route.method, route.path, {{"authorization", key}}), 401);
    }
  }
}

// x-api-key is from Anthropic's clients, api-key from Azure's.
TEST(Keys, OtherHeadersCarryAKeyIfAuthorizationIsAbsent) {
  TestServer server(WithKeys());
  for (const char* header : {"x-api-key", "X-Api-Key", "api-key", "Api-Key"}) {
    EXPECT_EQ(StatusOf(server, "GET", "/v1/models", {{header, "second-key"}}), 200) << header;
  }
}

TEST(Keys, ARefusalNamesTheScheme) {
  TestServer server(WithKeys());
  for (const HeaderList& headers : std::vector<HeaderList>{{}, {{"x-api-key", "wrong"}}}) {
    auto reply = server.Start("GET", "/v1/models", "", headers);
    EXPECT_EQ(reply->status(), 401);
    EXPECT_EQ(reply->Header("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(server.Start("GET", "/health")->Header("www-authenticate"), "");
}

TEST(Keys, NoPathBypassesTheKey) {
  TestServer server(WithKeys());
  for (const char* path : {"//v1/models", "/V1/models", "/v1/models/", "/health/../v1/models",
                           "/health/v1/models", "/v1/models?x=/health", "", "/x", "/nothing"}) {
    EXPECT_EQ(StatusOf(server, "GET", path), 401) << path;
  }
  auto reply = server.Start("GET", "/v1/models");
  EXPECT_EQ((*ParseJson(reply->body()))["error"]["code"], "invalid_api_key");
  EXPECT_EQ(reply->body().find("first-key"), std::string::npos);
}

TEST(Keys, AnyBearerIsAcceptedIfNoKeyIsSet) {
  TestServer server;
  EXPECT_EQ(StatusOf(server, "GET", "/v1/models", {{"Authorization", "Bearer anything"}}), 200);
}

TEST(Keys, MetricsNeedAKeyOnTheMainPortAndNoneOnTheAdminSocket) {
  TestServer server(WithKeys());
  EXPECT_EQ(StatusOf(server, "GET", "/metrics"), 401);
  EXPECT_EQ(StatusOf(server, "GET", "/metrics", {{"authorization", "Bearer first-key"}}), 200);
  server.endpoint = Endpoint::kAdminSocket;
  EXPECT_EQ(StatusOf(server, "GET", "/metrics"), 200);
}

TEST(Keys, ARefusalSaysHowToAuthenticate) {
  TestServer server(WithKeys());
  EXPECT_EQ(server.Start("GET", "/v1/models")->Header("www-authenticate"), "Bearer");
  server.endpoint = Endpoint::kAdminListen;
  EXPECT_EQ(server.Start("GET", "/cluster/status")->Header("www-authenticate"), "Bearer");
  server.endpoint = Endpoint::kMain;
  EXPECT_EQ(server.Start("GET", "/health")->Header("www-authenticate"), "");
}

TEST(Keys, BadKeysAreRefusedAtTheStartAndNotShown) {
  for (const std::string& bad :
       {std::string(), std::string("two words"), std::string("tab\there")}) {
    const auto keys = ApiKeys::Create({"good", bad});
    ASSERT_FALSE(keys.ok());
    EXPECT_NE(keys.status().message().find("2 of 2"), std::string::npos);
    EXPECT_EQ(keys.status().message().find("words"), std::string::npos);
  }
}

TEST(Keys, FilesHoldOneKeyPerLine) {
  const std::string path = testing::TempDir() + "/serve_api_keys";
  ASSERT_TRUE(WriteFileAtomically(path, "# ours\nfirst-key\r\n\nsecond-key  ").ok());
  EXPECT_EQ(*ReadApiKeyFile(path), (std::vector<std::string>{"first-key", "second-key"}));
  ASSERT_TRUE(WriteFileAtomically(path, "# none\n").ok());
  EXPECT_EQ(ReadApiKeyFile(path).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadApiKeyFile(path + ".no").status().code(), StatusCode::kNotFound);
}

TEST(Keys, CachedPrefixesOfDifferentKeysStayApart) {
  TestServer server(WithKeys());
  auto cached = [&](const char* key) {
    const Json body = {{"prompt", std::string(100, 'p')}, {"max_tokens", 1}};
    auto reply = server.Start("POST", "/v1/completions", DumpJson(body),
                              {{"authorization", std::string("Bearer ") + key}});
    EXPECT_TRUE(reply->WaitDone());
    return (*ParseJson(reply->body()))["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  EXPECT_EQ(cached("first-key"), 0);
  EXPECT_EQ(cached("second-key"), 0);
  EXPECT_GT(cached("first-key"), 0);
}

TEST(Routes, OtherMethodsAre405WithAllow) {
  TestServer server;
  auto check = [&server](const RouteCase& route) {
    for (const char* method : {"GET", "POST", "PUT", "DELETE", "TRACE", "get"}) {
      if (std::string(method) == route.method) continue;
      auto reply = server.Start(method, route.path, "{}");
      EXPECT_EQ(reply->status(), 405) << method << route.path;
      EXPECT_EQ(reply->Header("allow"),
                route.method == std::string("GET") ? "GET, HEAD" : route.method);
    }
  };
  for (const RouteCase& route : kRoutes) check(route);
  server.endpoint = Endpoint::kAdminSocket;
  for (const RouteCase& route : kAdminRoutes) check(route);
}

TEST(Routes, TheMainPortHasNoAdminRouteForAnyone) {
  for (const bool keyed : {false, true}) {
    TestServer server(keyed ? WithKeys() : TestServerOptions());
    for (const RouteCase& route : kAdminRoutes) {
      for (const char* method : {"GET", "POST", "HEAD", "OPTIONS", "DELETE"}) {
        for (const HeaderList& headers :
             std::vector<HeaderList>{{}, {{"authorization", "Bearer first-key"}}}) {
          auto reply = server.Start(method, route.path, "{}", headers);
          EXPECT_EQ(reply->status(), 404) << method << " " << route.path;
          EXPECT_NE(reply->body().find("unix socket of the server's user"), std::string::npos);
        }
      }
    }
    EXPECT_EQ(StatusOf(server, "GET", "/cluster"), 404);
    EXPECT_EQ(StatusOf(server, "GET", "/debug/anything"), 404);
    EXPECT_EQ(StatusOf(server, "GET", "/clusters"), keyed ? 401 : 404);
  }
}

TEST(Routes, TheAdminSocketServesOperatorsOnly) {
  TestServer server(WithKeys());
  server.endpoint = Endpoint::kAdminSocket;
  for (const char* path : {"/health", "/ready", "/version", "/metrics", "/debug/requests"}) {
    EXPECT_EQ(StatusOf(server, "GET", path), 200) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    auto reply = server.Start("POST", path, "{}", {{"authorization", "Bearer first-key"}});
    EXPECT_EQ(reply->status(), 404) << path;
    EXPECT_NE(reply->body().find("clients call the server's main port"), std::string::npos);
  }
  EXPECT_EQ(StatusOf(server, "GET", "/v1/models"), 404);
  // No CORS headers for web pages.
  auto reply = server.Start("OPTIONS", "/cluster/status", "", {{"origin", "https://a.example"}});
  EXPECT_EQ(reply->status(), 405);
  EXPECT_EQ(reply->Header("access-control-allow-origin"), "");
}

// The service sends the body also for HEAD; net drops it and keeps its length.
TEST(Routes, HeadIsAnsweredLikeGet) {
  TestServer server;
  for (const RouteCase& route : kRoutes) {
    auto head = server.Start("HEAD", route.path);
    ASSERT_TRUE(head->WaitDone());
    if (route.method == std::string("POST")) {
      EXPECT_EQ(head->status(), 405) << route.path;
      continue;
    }
    auto get = server.Start("GET", route.path);
    EXPECT_EQ(head->status(), get->status()) << route.path;
    EXPECT_EQ(head->Header("content-type"), get->Header("content-type"));
    EXPECT_FALSE(head->body().empty()) << "Content-Length is computed from it";
  }
  EXPECT_EQ(server.Start("HEAD", "/nothing")->status(), 404);
  TestServer closed(WithKeys());
  EXPECT_EQ(StatusOf(closed, "HEAD", "/v1/models"), 401);
  EXPECT_EQ(StatusOf(closed, "HEAD", "/health"), 200);
}

TEST(Routes, OtherCodingsThanGzipAre415) {
  TestServer server;
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  for (const char* coding : {"zstd", "br", "deflate, gzip", "x\x1b"}) {
    auto reply = server.Start("POST", "/v1/completions", body, {{"Content-Encoding", coding}});
    EXPECT_EQ(reply->status(), 415) << coding;
    EXPECT_EQ(reply->Header("accept-encoding"), "gzip");
    EXPECT_NE(reply->body().find("Content-Encoding"), std::string::npos);
    EXPECT_EQ((*ParseJson(reply->body()))["error"]["code"], "unsupported_media_type");
  }
  for (const char* coding : {"identity", "Identity", ""}) {
    EXPECT_EQ(StatusOf(server, "POST", "/detokenize", {{"Content-Encoding", coding}}), 400)
        << "refused for the missing tokens, not for the coding";
  }
}

TEST(Routes, BodiesMayBeGzip) {
  TestServer server;
  const auto post = [&](const std::string& body, const char* path = "/v1/completions") {
    auto reply = server.Start("POST", path, body, {{"Content-Encoding", "gzip"}});
    EXPECT_TRUE(reply->WaitDone());
    return reply;
  };
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  EXPECT_EQ(post(Gzip(body))->status(), 200);
  const std::string large = body + std::string(200'000, ' ');
  EXPECT_EQ(post(Gzip(large))->status(), 200) << "beyond what the I/O thread inflates";
  auto damaged = post(Gzip(body).substr(0, 20));
  EXPECT_EQ(damaged->status(), 400);
  EXPECT_NE(damaged->body().find("Content-Encoding"), std::string::npos);
  auto bomb = post(Gzip(std::string(20 << 20, ' ')));
  EXPECT_EQ(bomb->status(), 413);
  EXPECT_NE(bomb->body().find("16777216 bytes"), std::string::npos) << bomb->body();
  EXPECT_EQ(post(Gzip("{"))->status(), 400);
  EXPECT_EQ(post("")->status(), 400);
}

TEST(Routes, UnknownPathsAre404WithAnErrorBody) {
  TestServer server;
  for (const char* path : {"/v1", "/v1/embedding", "/v1/images", "/v1/audio/speech", "/health/x",
                           "/Health", "/v1/completions/x", "/debug/requests/"}) {
    auto reply = server.Start("GET", path);
    EXPECT_EQ(reply->status(), 404) << path;
    EXPECT_TRUE((*ParseJson(reply->body()))["error"]["message"].is_string());
    EXPECT_EQ(reply->Header("x-should-retry"), "false");
  }
}

TEST(Routes, OnlyJsonIsAccepted) {
  TestServer server;
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  auto post = [&](const HeaderList& headers) {
    auto reply = server.Start("POST", "/v1/completions", body, headers);
    EXPECT_TRUE(reply->WaitDone());
    return reply->status();
  };
  EXPECT_EQ(post({}), 200);
  EXPECT_EQ(post({{"content-type", "application/json; charset=utf-8"}}), 200);
  EXPECT_EQ(post({{"Content-Type", "APPLICATION/JSON"}}), 200);
  EXPECT_EQ(post({{"Content-Type", "text/plain"}}), 415);
  EXPECT_EQ(post({{"Content-Type", "application/x-www-form-urlencoded"}}), 415);
}

TEST(Routes, RequestIdsAreEchoedWhenHarmless) {
  TestServer server;
  auto id = [&](const std::string& given) {
    return server.Start("GET", "/health", "", {{"X-Request-Id", given}})->Header("x-request-id");
  };
  EXPECT_EQ(id("abc-1"), "abc-1");
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\r\nset-cookie: x"), std::string(300, 'x'),
        std::string("\x1b[31m"), std::string("é")}) {
    const std::string made = id(bad);
    EXPECT_EQ(made.rfind("req-", 0), 0u);
    EXPECT_EQ(made.size(), 36u);
  }
  EXPECT_NE(id(""), id(""));
}

TEST(Routes, LargeBodiesAreParsedOnAnotherThread) {
  TestServer server;
  Json body = {{"prompt", "abc"}, {"max_tokens", 5}, {"user", std::string(100'000, 'u')}};
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "hello");
}

TEST(Cors, AnyOriginByDefault) {
  TestServer server;
  auto reply = server.Start("GET", "/version", "", {{"Origin", "https://page.example"}});
  EXPECT_EQ(reply->Header("access-control-allow-origin"), "*");
  EXPECT_EQ(server.Start("GET", "/version")->Header("access-control-allow-origin"), "");
}

TEST(Cors, PreflightNeedsNoKeyAndAllowsTheClientsHeaders) {
  TestServer server(WithKeys());
  auto reply =
      server.Start("OPTIONS", "/v1/chat/completions", "",
                   {{"Origin", "https://page.example"},
                    {"Access-Control-Request-Method", "POST"},
                    {"Access-Control-Request-Headers",
                     "authorization,content-type,x-stainless-os,x-stainless-retry-count"}});
  EXPECT_EQ(reply->status(), 204);
  EXPECT_EQ(reply->Header("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_NE(reply->Header("access-control-allow-headers").find("x-stainless-os"),
            std::string::npos);
  EXPECT_EQ(reply->Header("access-control-allow-origin"), "*");
}

TEST(Cors, OnlyListedOrigins) {
  TestServerOptions options;
  options.service.allowed_origins = {"https://good.example"};
  TestServer server(std::move(options));
  auto allowed = [&](const char* origin) {
    return server.Start("GET", "/version", "", {{"Origin", origin}})
        ->Header("access-control-allow-origin");
  };
  EXPECT_EQ(allowed("https://good.example"), "https://good.example");
  EXPECT_EQ(allowed("https://good.example.evil"), "");
  EXPECT_EQ(allowed("null"), "");
}

// A generator whose cluster may lack layers.
class UnreadyGenerator final : public WrappedGenerator {
 public:
  std::optional<std::string> NotReady() const override { return not_ready; }
  std::optional<std::string> not_ready;
};

TEST(State, ReadySaysWhatIsMissing) {
  TestServerOptions options;
  options.ready = false;
  UnreadyGenerator generator;  // declared first: the server's destructor drains it
  TestServer server(options);
  generator.inner = server.engine;
  generator.not_ready = "Layers 4-7 are on no worker.";
  server.MakeReady(&generator);
  auto missing = server.Start("GET", "/ready");
  ASSERT_TRUE(missing->WaitDone());
  EXPECT_EQ(missing->status(), 503);
  EXPECT_NE(missing->Header("retry-after"), "");
  EXPECT_EQ((*ParseJson(missing->body()))["error"]["message"], "Layers 4-7 are on no worker.");
  EXPECT_EQ(StatusOf(server, "GET", "/health"), 200) << "not ready, but healthy";
  server.Call("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}});
  generator.not_ready.reset();
  EXPECT_EQ(StatusOf(server, "GET", "/ready"), 200);
}

TEST(State, LoadingAnswers503UntilReady) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(std::move(options));
  for (const char* path : {"/ready", "/v1/models"}) {
    auto reply = server.Start("GET", path);
    EXPECT_EQ(reply->status(), 503) << path;
    EXPECT_EQ(reply->Header("retry-after"), "5");
    EXPECT_EQ(reply->Header("x-should-retry"), "");
  }
  EXPECT_EQ(server.Post("/v1/completions", {{"prompt", "a"}})->status(), 503);
  EXPECT_EQ(server.Get("/health")["status"], "ok");
  EXPECT_EQ(server.Start("GET", "/metrics")->status(), 200);
  server.MakeReady();
  EXPECT_EQ(server.Get("/ready")["status"], "ready");
  server.Call("/v1/completions", {{"prompt", "a"}});
}

TEST(State, HealthIsRedWhileAStepHangsAndNamesTheRequest) {
  TestServer server;
  server.gate.Close();
  auto hung = server.Start("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 2})",
                           {{"x-request-id", "the-hung-one"}});
  std::shared_ptr<RecordingReply> health;
  for (int i = 0; i < 100; ++i) {  // the watchdog reports after a second
    health = server.Start("GET", "/health");
    if (health->status() == 503) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(health->status(), 503);
  EXPECT_NE(health->body().find("the-hung-one"), std::string::npos) << health->body();
  server.gate.Open();
  ASSERT_TRUE(hung->WaitDone());
  EXPECT_EQ(server.Get("/health")["status"], "ok");
}

TEST(Models, ListedByEveryServedName) {
  TestServerOptions options;
  options.service.served_names = {"org/tiny", "alias"};
  TestServer server(std::move(options));
  const Json list = server.Get("/v1/models")["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["id"], "org/tiny");
  EXPECT_EQ(list[0]["max_model_len"], 256);
  EXPECT_EQ(list[1]["root"], "org/tiny");
  EXPECT_EQ(server.Get("/v1/models/org/tiny")["id"], "org/tiny");
  EXPECT_EQ(server.Get("/v1/models/other", 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(server.Get("/v1/models/../../etc/passwd", 404)["error"]["code"], "model_not_found");
  const Json answer = server.Call("/v1/completions", {{"model", "alias"}, {"prompt", "a"}});
  EXPECT_EQ(answer["model"], "alias");
  EXPECT_EQ(server.Get("/version")["version"], "1.2.3");
}

// Requests may name the path that the model was loaded from, but no answer shows it.
TEST(Models, AnUnlistedNameIsAcceptedAndNotShown) {
  TestServerOptions options;
  options.service.served_names = {"tiny"};
  options.service.unlisted_names = {"/srv/models/tiny"};
  TestServer server(std::move(options));
  const Json list = server.Get("/v1/models");
  EXPECT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(DumpJson(list).find("/srv"), std::string::npos);
  EXPECT_EQ(server.Get("/v1/models//srv/models/tiny", 404)["error"]["code"], "model_not_found");
  const Json body = {{"model", "/srv/models/tiny"}, {"prompt", "a"}, {"max_tokens", 1}};
  EXPECT_EQ(server.Call("/v1/completions", body)["model"], "tiny");
}

TEST(Debug, ARequestIsFoundByEachOfItsNames) {
  TestServer server;
  server.gate.Close();
  auto reply = server.Start("POST", "/v1/completions",
                            R"({"prompt": "abc", "max_tokens": 5, "request_id": "mine"})",
                            {{"x-request-id", "theirs"}});
  const Json list = server.AdminGet("/debug/requests")["requests"];
  ASSERT_EQ(list.size(), 1u);
  const std::string number = std::to_string(list[0]["id"].get<int>());
  for (const std::string& name : {number, std::string("theirs"), std::string("cmpl-mine")}) {
    const Json info = server.AdminGet("/debug/requests/" + name);
    EXPECT_EQ(info["prompt_tokens"], 3) << name;
    EXPECT_EQ(info["response_id"], "cmpl-mine");
    EXPECT_TRUE(info["age_s"].is_number());
    EXPECT_TRUE(info["blocks"].is_number());
    EXPECT_TRUE(info["preemptions"].is_number());
    EXPECT_TRUE(info["waits_for"].is_string());
  }
  server.gate.Open();
  ASSERT_TRUE(reply->WaitDone());
  ASSERT_TRUE(server.WaitUntilFree());
  const Json ended = server.AdminGet("/debug/requests/theirs");
  EXPECT_EQ(ended["state"], "finished");
  EXPECT_EQ(ended["finish_reason"], "length");
  EXPECT_EQ(ended["output_tokens"], 5);
  EXPECT_TRUE(ended["times"]["first_token_s"].is_number());
  double sum = 0;
  for (const Json& entry : ended["account"]["entries"]) sum += entry["seconds"].get<double>();
  EXPECT_NEAR(sum, ended["account"]["wall_s"].get<double>(), 1e-6) << ended["account"];
  EXPECT_EQ(server.AdminGet("/debug/requests?slowest=3")["requests"][0]["request_id"], "theirs");
  EXPECT_EQ(server.AdminGet("/debug/requests?slowest=0", 400)["error"]["type"],
            "invalid_request_error");
  EXPECT_EQ(server.AdminGet("/debug/requests/nobody", 404)["error"]["code"], "request_not_found");
  EXPECT_TRUE(server.AdminGet("/debug/requests")["requests"].empty());
}

}  // namespace
}  // namespace millrace::serve
