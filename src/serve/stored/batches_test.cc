// /v1/files and /v1/batches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "serve/stored/batch_lines.h"
#include "serve/stored/object_store.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct Asked {
  int status = 0;
  std::string body;
};

Asked Ask(TestServer& server, const std::string& method, const std::string& path,
          const std::string& body = "", HeaderList headers = {}) {
  auto reply = server.Start(method, path, body, std::move(headers));
  EXPECT_TRUE(reply->WaitDone());
  return {reply->status(), reply->body()};
}

Json AskJson(TestServer& server, const std::string& method, const std::string& path,
             const Json& body = nullptr, int status = 200) {
  const Asked answer = Ask(server, method, path, body.is_null() ? "" : DumpJson(body));
  EXPECT_EQ(answer.status, status) << answer.body;
  return Json::parse(answer.body);
}

Asked Upload(TestServer& server, const std::string& content, const std::string& purpose = "batch",
             HeaderList headers = {}) {
  headers.emplace_back("content-type", "multipart/form-data; boundary=b0undary");
  return Ask(server, "POST", "/v1/files",
             fmt::format("--b0undary\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{}"
                         "\r\n--b0undary\r\nContent-Disposition: form-data; name=\"file\"; "
                         "filename=\"in.jsonl\"\r\n\r\n{}\r\n--b0undary--\r\n",
                         purpose, content),
             headers);
}

std::string Line(const std::string& id, Json body,
                 const std::string& url = "/v1/chat/completions") {
  return DumpJson({{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}) + "\n";
}

Json BatchChat() { return {{"messages", {{{"role", "user"}, {"content", "x"}}}}}; }

Json CreateBatch(TestServer& server, const std::string& content, int status = 200,
                 const std::string& endpoint = "/v1/chat/completions") {
  const Json file = Json::parse(Upload(server, content).body);
  return AskJson(server, "POST", "/v1/batches",
                 {{"input_file_id", file["id"]},
                  {"endpoint", endpoint},
                  {"completion_window", "24h"},
                  {"metadata", {{"k", "v"}}}},
                 status);
}

Json EndedBatch(TestServer& server, const Json& id) {
  const std::string path = "/v1/batches/" + id.get<std::string>();
  Json batch;
  for (int i = 0; i < 2000; ++i) {
    batch = AskJson(server, "GET", path);
    const Json& status = batch["status"];
    if (status != "in_progress" && status != "cancelling") return batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "still " << batch;
  return batch;
}

std::vector<Json> Lines(TestServer& server, const Json& file) {
  const Asked answer = Ask(server, "GET", "/v1/files/" + file.get<std::string>() + "/content");
  EXPECT_EQ(answer.status, 200) << answer.body;
  std::vector<Json> lines;
  std::istringstream in(answer.body);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Files, AreUploadedListedReadAndDeleted) {
  TestServer server;
  const Asked uploaded = Upload(server, "a\r\nb\n");
  ASSERT_EQ(uploaded.status, 200) << uploaded.body;
  const Json file = Json::parse(uploaded.body);
  EXPECT_EQ(file["object"], "file");
  EXPECT_EQ(file["bytes"], 5);
  EXPECT_EQ(file["filename"], "in.jsonl");
  const std::string path = "/v1/files/" + file["id"].get<std::string>();
  EXPECT_EQ(AskJson(server, "GET", path), file);
  EXPECT_EQ(Ask(server, "GET", path + "/content").body, "a\r\nb\n");
  Upload(server, "second");
  const Json page = AskJson(server, "GET", "/v1/files?limit=1");
  EXPECT_EQ(page["has_more"], true);
  const Json next =
      AskJson(server, "GET", "/v1/files?limit=1&after=" + page["last_id"].get<std::string>());
  EXPECT_EQ(next["data"][0], file);
  EXPECT_EQ(next["has_more"], false);
  EXPECT_EQ(AskJson(server, "DELETE", path)["deleted"], true);
  AskJson(server, "GET", path, nullptr, 404);
  AskJson(server, "DELETE", path, nullptr, 404);
  AskJson(server, "GET", "/v1/files?limit=0", nullptr, 400);
}

TEST(Files, WhatIsNoFormIsRefused) {
  TestServer server;
  EXPECT_EQ(Ask(server, "POST", "/v1/files", "{}").status, 415);
  EXPECT_EQ(Upload(server, "x", "fine-tune").status, 400);
  EXPECT_EQ(Ask(server, "POST", "/v1/files", "--b--",
                {{"content-type", "multipart/form-data; boundary=b"}})
                .status,
            400);
  // Forms are for files only: a web page can send them without being asked first.
  EXPECT_EQ(Ask(server, "POST", "/v1/completions", "--b--",
                {{"content-type", "multipart/form-data; boundary=b"}})
                .status,
            415);
}

TEST(Files, BelongToTheirKey) {
  TestServerOptions options;
  options.service.api_keys = ApiKeys::Create({"alice", "bob"}).value();
  TestServer server(options);
  const HeaderList alice = {{"authorization", "Bearer alice"}},
                   bob = {{"authorization", "Bearer bob"}};
  const Json file = Json::parse(Upload(server, "x", "batch", alice).body);
  const std::string id = file["id"].get<std::string>();
  EXPECT_EQ(Ask(server, "GET", "/v1/files/" + id + "/content", "", alice).status, 200);
  EXPECT_EQ(Ask(server, "GET", "/v1/files/" + id + "/content", "", bob).status, 404);
  EXPECT_EQ(Ask(server, "DELETE", "/v1/files/" + id, "", bob).status, 404);
  EXPECT_EQ(Json::parse(Ask(server, "GET", "/v1/files", "", bob).body)["data"], Json::array());
  const Json body = {{"input_file_id", id}, {"endpoint", "/v1/completions"}};
  const Asked stolen = Ask(server, "POST", "/v1/batches", DumpJson(body), bob);
  EXPECT_EQ(Json::parse(stolen.body)["error"]["code"], "file_not_found");
}

TEST(Batches, EveryRequestGetsItsResult) {
  TestServer server;
  std::string content;
  for (int i = 0; i < 100; ++i) content += Line(fmt::format("r{}", i), BatchChat());
  Json bad = BatchChat();
  bad["temperature"] = 1000;
  content += Line("bad", bad);
  const Json created = CreateBatch(server, content);
  EXPECT_EQ(created["status"], "in_progress");
  EXPECT_EQ(created["metadata"]["k"], "v");
  const Json batch = EndedBatch(server, created["id"]);
  EXPECT_EQ(batch["status"], "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 101}, {"completed", 100}, {"failed", 1}}));
  const auto results = Lines(server, batch["output_file_id"]);
  ASSERT_EQ(results.size(), 100u);
  EXPECT_EQ(results[7]["custom_id"], "r7");
  EXPECT_EQ(results[7]["response"]["status_code"], 200);
  EXPECT_EQ(
      results[7]["response"]["body"]["choices"][0]["message"]["content"].get<std::string>().substr(
          0, 5),
      "hello");
  const auto errors = Lines(server, batch["error_file_id"]);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0]["custom_id"], "bad");
  EXPECT_EQ(errors[0]["response"]["status_code"], 400);
  EXPECT_EQ(AskJson(server, "GET", "/v1/batches")["data"][0], batch);
  AskJson(server, "POST", "/v1/batches/" + batch["id"].get<std::string>() + "/cancel", nullptr,
          409);
  AskJson(server, "GET", "/v1/batches/batch_0", nullptr, 404);
}

TEST(Batches, ResultsNameFieldsWithoutEffect) {
  TestServer server;
  Json body = BatchChat();
  body["user"] = "u";
  body["response_format"] = {{"type", "text"}, {"colour", "red"}};
  const Json created = CreateBatch(server, Line("a", body) + Line("b", BatchChat()));
  const auto results = Lines(server, EndedBatch(server, created["id"])["output_file_id"]);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["response"]["ignored"], "response_format.colour, user");
  EXPECT_FALSE(results[1]["response"].contains("ignored"));
}

TEST(Batches, MoreRequestsThanTheServerHasRoomForAreAskedAgain) {
  TestServerOptions options;
  options.max_waiting = 2;
  TestServer server(options);
  std::string content;
  for (int i = 0; i < 80; ++i) content += Line(fmt::format("r{}", i), BatchChat());
  server.gate.Close();
  const Json created = CreateBatch(server, content);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.gate.Open();
  const Json batch = EndedBatch(server, created["id"]);
  EXPECT_EQ(batch["request_counts"]["completed"], 80);
}

TEST(Batches, AFileThatCannotBeRunSaysWhere) {
  TestServer server;
  const Json batch =
      CreateBatch(server, Line("a", BatchChat()) + "{\n" + Line("a", BatchChat()) +
                              Line("b", BatchChat(), "/v1/completions") + "{\"custom_id\": 7}\n");
  EXPECT_EQ(batch["status"], "failed");
  const Json& errors = batch["errors"]["data"];
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0]["line"], 2);
  EXPECT_EQ(errors[1]["code"], "duplicate_custom_id");
  EXPECT_EQ(errors[2]["code"], "invalid_url");
  EXPECT_EQ(errors[3]["code"], "invalid_custom_id");
  EXPECT_EQ(AskJson(server, "GET", "/v1/batches/" + batch["id"].get<std::string>()), batch);
  EXPECT_EQ(CreateBatch(server, "\n")["errors"]["data"][0]["code"], "empty_file");
  Json streams = BatchChat();
  streams["stream"] = true;
  EXPECT_EQ(CreateBatch(server, Line("s", streams))["errors"]["data"][0]["code"], "invalid_body");
}

TEST(Batches, BadRequestsAreRefused) {
  TestServer server;
  const Json file = Json::parse(Upload(server, "x").body);
  const auto param = [&](const Json& body) {
    return AskJson(server, "POST", "/v1/batches", body, 400)["error"]["param"];
  };
  const Json id = file["id"];
  EXPECT_EQ(param({{"input_file_id", id}, {"endpoint", "/tokenize"}}), "endpoint");
  EXPECT_EQ(param({{"input_file_id", "file-0"}, {"endpoint", "/v1/completions"}}), "input_file_id");
  EXPECT_EQ(
      param(
          {{"input_file_id", id}, {"endpoint", "/v1/completions"}, {"completion_window", "never"}}),
      "completion_window");
}

TEST(Batches, AreCancelled) {
  TestServer server;
  server.gate.Close();
  std::string content;
  for (int i = 0; i < 300; ++i) content += Line(fmt::format("r{}", i), BatchChat());
  const Json created = CreateBatch(server, content);
  const std::string path = "/v1/batches/" + created["id"].get<std::string>();
  const std::string file = "/v1/files/" + created["input_file_id"].get<std::string>();
  EXPECT_EQ(AskJson(server, "DELETE", file, nullptr, 409)["error"]["code"], "file_in_use");
  EXPECT_EQ(AskJson(server, "POST", path + "/cancel")["status"], "cancelling");
  server.gate.Open();
  const Json batch = EndedBatch(server, created["id"]);
  EXPECT_EQ(batch["status"], "cancelled");
  EXPECT_LT(batch["request_counts"]["completed"], 300);
  EXPECT_FALSE(batch["cancelled_at"].is_null());
  AskJson(server, "DELETE", file);
}

TEST(Batches, GoOnAfterARestartWithoutAskingAgain) {
  const std::shared_ptr<ObjectStore> store = ObjectStore::Open({}).value();
  TestServerOptions options;
  options.service.store = store;
  Json created;
  {
    TestServer server(options);
    server.gate.Close();
    std::string content;
    for (int i = 0; i < 200; ++i) content += Line(fmt::format("r{}", i), BatchChat());
    created = CreateBatch(server, content);
  }
  const std::string id = created["id"].get<std::string>();
  ASSERT_EQ(store->ListOpen(ObjectKind::kBatch)->size(), 1u);
  // A result that the first server wrote is kept as it is.
  ASSERT_TRUE(store->PutBatchLine(id, {.number = 3, .text = "{\"custom_id\": \"kept\"}\n"}).ok());
  TestServer server(options);
  const Json batch = EndedBatch(server, created["id"]);
  EXPECT_EQ(batch["status"], "completed");
  EXPECT_EQ(batch["request_counts"]["completed"], 200);
  const auto results = Lines(server, batch["output_file_id"]);
  ASSERT_EQ(results.size(), 200u);
  EXPECT_EQ(results[2]["custom_id"], "kept");
  EXPECT_TRUE(store->BatchLines(id)->empty());
}

TEST(Batches, OneThatIsTooLateEnds) {
  const std::shared_ptr<ObjectStore> store = ObjectStore::Open({}).value();
  TestServerOptions options;
  options.service.store = store;
  std::string id;
  {
    TestServer server(options);
    server.gate.Close();
    std::string content;
    for (int i = 0; i < 90; ++i) content += Line(fmt::format("r{}", i), BatchChat());
    id = CreateBatch(server, content)["id"].get<std::string>();
  }
  auto open = store->ListOpen(ObjectKind::kBatch);
  ASSERT_EQ(open->size(), 1u);
  Json object = Json::parse(open->front().body);
  object["expires_at"] = 1000;
  open->front().body = DumpJson(object);
  ASSERT_TRUE(store->Put(open->front()).ok());
  TestServer server(options);
  const Json batch = EndedBatch(server, id);
  EXPECT_EQ(batch["status"], "expired");
  const auto errors = Lines(server, batch["error_file_id"]);
  EXPECT_EQ(errors.back()["error"]["code"], "batch_expired");
}

TEST(Batches, EmbeddingsToo) {
  TestServer server;
  const Json created =
      CreateBatch(server, Line("a", {{"input", "b"}}, "/v1/embeddings"), 200, "/v1/embeddings");
  const Json batch = EndedBatch(server, created["id"]);
  const auto results = Lines(server, batch["output_file_id"]);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["response"]["body"]["data"][0]["object"], "embedding");
}

TEST(Batches, ResponsesToo) {
  TestServer server(Reciting("hello"));
  const Json created =
      CreateBatch(server, Line("a", {{"input", "x"}}, "/v1/responses"), 200, "/v1/responses");
  const Json batch = EndedBatch(server, created["id"]);
  const auto results = Lines(server, batch["output_file_id"]);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["response"]["body"]["object"], "response");
}

}  // namespace
}  // namespace millrace::serve
