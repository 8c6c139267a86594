// /cluster: the endpoints that serve it, the keys it needs, its calls of ClusterAdmin, and its
// error texts.
#include <gtest/gtest.h>

#include <mutex>

#include "serve/observe/cluster_admin.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

class FakeAdmin final : public ClusterAdmin {
 public:
  Json Describe() override { return {{"epoch", 7}, {"missing", nullptr}}; }
  Json Machines() override { return {{"workers", {"a"}}}; }
  Json Decisions() override { return {{"decisions", {1, 2}}}; }
  Result<int64_t> ApplyPlan(WorkerPlan plan, std::string) override {
    plans.push_back(std::move(plan));
    if (!answer.ok()) return answer;
    return 8;
  }
  Status Drain(std::string_view worker) override {
    calls += "drain " + std::string(worker) + ";";
    return answer;
  }
  Status Migrate(RequestId request, std::string_view worker) override {
    calls += "migrate " + std::to_string(request.value()) + " " + std::string(worker) + ";";
    return answer;
  }

  std::vector<WorkerPlan> plans;
  std::string calls;
  Status answer;
};

class ClusterTest : public testing::Test {
 protected:
  std::unique_ptr<TestServer> Serve(std::vector<std::string> admin_keys = {},
                                    std::vector<std::string> api_keys = {}) {
    TestServerOptions options;
    options.service.admin_keys = *ApiKeys::Create(admin_keys);
    options.service.api_keys = *ApiKeys::Create(api_keys);
    options.service.loaded_from = "/srv/models/folder/";
    options.cluster = &admin_;
    auto server = std::make_unique<TestServer>(std::move(options));
    server->endpoint = Endpoint::kAdminSocket;
    return server;
  }
  static int StatusOf(TestServer& server, const HeaderList& headers,
                      const std::string& path = "/cluster/status") {
    const bool reads =
        path == "/cluster/status" || path == "/cluster/machines" || path == "/cluster/decisions";
    auto reply = server.Start(reads ? "GET" : "POST", path, "{}", headers);
    EXPECT_TRUE(reply->WaitDone());
    return reply->status();
  }
  FakeAdmin admin_;
};

constexpr const char* kPaths[] = {"/cluster/status", "/cluster/machines", "/cluster/decisions",
                                  "/cluster/plan",   "/cluster/drain",    "/cluster/migrate"};

TEST_F(ClusterTest, TheAdminSocketNeedsNoKey) {
  auto server = Serve({"root-key"}, {"api-key"});
  for (const char* path : kPaths) {
    for (const HeaderList& headers :
         std::vector<HeaderList>{{}, {{"authorization", "Bearer wrong"}}}) {
      EXPECT_NE(StatusOf(*server, headers, path), 401) << path;
      EXPECT_NE(StatusOf(*server, headers, path), 404) << path;
    }
  }
}

TEST_F(ClusterTest, TheAdminAddressAlwaysNeedsTheAdminKey) {
  auto server = Serve({"root-key"}, {"api-key"});
  server->endpoint = Endpoint::kAdminListen;
  std::vector<std::string> paths(std::begin(kPaths), std::end(kPaths));
  for (const char* other : {"/metrics", "/health", "/debug/requests", "/v1/models", "/nothing"}) {
    paths.push_back(other);
  }
  for (const char* peer : {"127.0.0.1:4", "203.0.113.9:4"}) {
    server->peer = peer;
    for (const std::string& path : paths) {
      for (const HeaderList& headers :
           std::vector<HeaderList>{{},
                                   {{"authorization", "Bearer api-key"}},
                                   {{"authorization", "Bearer root-ke"}},
                                   {{"authorization", "root-key"}},
                                   {{"host", "localhost:8000"}}}) {
        EXPECT_EQ(StatusOf(*server, headers, path), 401) << path;
      }
    }
    for (const char* path : kPaths) {
      const int status = StatusOf(*server, {{"authorization", "Bearer root-key"}}, path);
      EXPECT_TRUE(status == 200 || status == 400) << path << " " << status;
    }
  }
  EXPECT_EQ(StatusOf(*server, {{"authorization", "Bearer root-key"}}), 200);
}

TEST_F(ClusterTest, WithoutAnAdminKeyTheAdminAddressIsClosed) {
  auto server = Serve({}, {});
  server->endpoint = Endpoint::kAdminListen;
  EXPECT_EQ(StatusOf(*server, {}), 401);
  EXPECT_EQ(StatusOf(*server, {{"authorization", "Bearer "}}), 401);
  const auto refused = server->Start("GET", "/cluster/status");
  EXPECT_EQ(refused->Header("connection"), "close") << "the address has few connections";
}

TEST_F(ClusterTest, TheMainPortHasNoClusterRoutesForAnyCaller) {
  auto server = Serve({"root-key"}, {"api-key"});
  server->endpoint = Endpoint::kMain;
  for (const char* peer : {"127.0.0.1:4", "[::1]:4", "203.0.113.9:4", ""}) {
    server->peer = peer;
    for (const char* path : kPaths) {
      for (const HeaderList& headers :
           std::vector<HeaderList>{{},
                                   {{"host", "127.0.0.1:8000"}},
                                   {{"host", "localhost"}},
                                   {{"authorization", "Bearer root-key"}},
                                   {{"authorization", "Bearer api-key"}},
                                   {{"x-forwarded-for", "127.0.0.1"}}}) {
        EXPECT_EQ(StatusOf(*server, headers, path), 404) << path;
      }
    }
  }
  EXPECT_EQ(admin_.calls, "");
  EXPECT_EQ(StatusOf(*server, {{"authorization", "Bearer root-key"}}, "/v1/models"), 401)
      << "the admin key is not an API key";
}

TEST_F(ClusterTest, AServerWithoutAClusterSaysSo) {
  TestServer server;
  server.endpoint = Endpoint::kAdminSocket;
  for (const char* path : kPaths) {
    EXPECT_EQ(StatusOf(server, {}, path), 404);
  }
  EXPECT_EQ(server.Get("/cluster/status", 404)["error"]["code"], "no_cluster");
}

TEST_F(ClusterTest, TheStatusIncludesTheModelsName) {
  auto server = Serve();
  EXPECT_EQ(server->Get("/cluster/status"),
            (Json{{"epoch", 7}, {"missing", nullptr}, {"model", "tiny"}}));
  EXPECT_EQ(server->Get("/cluster/machines"), (Json{{"workers", {"a"}}, {"model", "tiny"}}));
  EXPECT_EQ(server->Get("/cluster/decisions"), (Json{{"decisions", {1, 2}}, {"model", "tiny"}}));
}

TEST_F(ClusterTest, PlansArriveParsed) {
  auto server = Serve();
  const std::string plan =
      "format: 1\nmodel: tiny\nlayers: 4\nstages:\n"
      "  - {stage: 0, nodes: [b], layers: [0, 3]}\n  - {stage: 1, nodes: [a], layers: [3, 4]}\n";
  EXPECT_EQ(server->Call("/cluster/plan", {{"plan", plan}}), (Json{{"status", "ok"}}));
  ASSERT_EQ(admin_.plans.size(), 1u);
  EXPECT_EQ(admin_.plans[0].workers, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(admin_.plans[0].plan.stages[1].layers, (LayerRange{3, 4}));
  const Json wrong = server->Call("/cluster/plan", {{"plan", "format: 2\n"}}, 400);
  EXPECT_EQ(wrong["error"]["param"], "plan");
  EXPECT_NE(wrong["error"]["message"].get<std::string>().find("plan:1:"), std::string::npos);
  EXPECT_EQ(admin_.plans.size(), 1u);
}

TEST_F(ClusterTest, APlanForAnotherModelIsRefused) {
  auto server = Serve();
  const auto plan = [](const std::string& model) {
    return Json{{"plan", "model: " + model +
                             "\nlayers: 4\nstages:\n  - {stage: 0, nodes: [a], layers: [0, 4]}\n"}};
  };
  const Json error = server->Call("/cluster/plan", plan("llama-70b"), 400)["error"];
  EXPECT_EQ(error["param"], "plan");
  EXPECT_EQ(error["message"],
            "the plan is for the model llama-70b, and this server serves tiny; if it is meant for "
            "that one, write `model: tiny` into it");
  EXPECT_TRUE(admin_.plans.empty());
  for (const char* name : {"tiny", "owner/tiny", "folder"}) {
    server->Call("/cluster/plan", plan(name));
  }
  EXPECT_EQ(admin_.plans.size(), 3u);
}

TEST_F(ClusterTest, RefusalsNameTheFieldAndTheReason) {
  auto server = Serve();
  struct Case {
    const char* path;
    Json body;
    const char* param;
  };
  for (const Case& c :
       {Case{"/cluster/plan", Json::object(), "plan"}, Case{"/cluster/plan", {{"plan", 3}}, "plan"},
        Case{"/cluster/drain", Json::object(), "worker"},
        Case{"/cluster/drain", {{"worker", std::string(300, 'w')}}, "worker"},
        Case{"/cluster/migrate", {{"worker", "a"}}, "request"},
        Case{"/cluster/migrate", {{"request", "a"}}, "worker"}}) {
    EXPECT_EQ(server->Call(c.path, c.body, 400)["error"]["param"], c.param) << c.path;
  }
  EXPECT_EQ(server->Call("/cluster/drain", Json::array(), 400)["error"]["message"],
            "The body must be a JSON object.");
  EXPECT_EQ(admin_.calls, "");
  admin_.answer = NotFound("no worker 'x'; the workers are a, b");
  EXPECT_EQ(server->Call("/cluster/drain", {{"worker", "x"}}, 404)["error"]["message"],
            "no worker 'x'; the workers are a, b");
  admin_.answer = FailedPrecondition("another plan is being applied");
  EXPECT_EQ(server->Call("/cluster/drain", {{"worker", "x"}}, 409)["error"]["message"],
            "another plan is being applied");
}

TEST_F(ClusterTest, ARequestIsFoundByEachOfItsNames) {
  auto server = Serve();
  server->gate.Close();
  server->endpoint = Endpoint::kMain;
  auto one = server->Start("POST", "/v1/completions", R"({"prompt":"a","max_tokens":5})",
                           {{"x-request-id", "mine"}});
  auto two = server->Start("POST", "/v1/completions", R"({"prompt":["a","b"],"max_tokens":5})",
                           {{"x-request-id", "pair"}});
  server->endpoint = Endpoint::kAdminSocket;
  const Json live = server->Get("/debug/requests")["requests"];
  ASSERT_EQ(live.size(), 3u);
  const auto number = std::to_string(live[0]["id"].get<uint64_t>());
  for (const std::string& name :
       {number, std::string("mine"), live[0]["response_id"].get<std::string>()}) {
    admin_.calls.clear();
    server->Call("/cluster/migrate", {{"request", name}, {"worker", "w"}});
    EXPECT_EQ(admin_.calls, "migrate " + number + " w;");
  }
  EXPECT_EQ(server->Call("/cluster/migrate", {{"request", "pair"}, {"worker", "w"}},
                         409)["error"]["code"],
            "request_ambiguous");
  EXPECT_EQ(server->Call("/cluster/migrate", {{"request", "none"}, {"worker", "w"}},
                         404)["error"]["code"],
            "request_not_found");
  server->gate.Open();
  EXPECT_TRUE(one->WaitDone());
  EXPECT_TRUE(two->WaitDone());
  server->Call("/cluster/migrate", {{"request", "mine"}, {"worker", "w"}}, 404);
}

}  // namespace
}  // namespace millrace::serve
