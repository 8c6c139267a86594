// OpenAI's Responses API: requests and answers, and responses that are stored, continued and
// computed in the background.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "serve/stored/object_store.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

constexpr char kCallingAnswer[] =
    "<think>hm</think>Sure.<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}</tool_call>";

std::vector<TypedEvent> EventsOf(TestServer& server, Json body) {
  body["stream"] = true;
  auto reply = server.Post("/v1/responses", body);
  EXPECT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 200) << reply->body();
  return TypedEvents(reply->body());
}

Json ResponsesBody() {
  return {{"input", "x"},
          {"max_output_tokens", 200},
          {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
}

TEST(Responses, AWholeAnswer) {
  TestServer server(Reciting(kCallingAnswer));
  const Json answer = server.Call("/v1/responses", ResponsesBody());
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  ASSERT_EQ(answer["output"].size(), 3u);
  EXPECT_EQ(answer["output"][0]["type"], "reasoning");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "Sure.");
  EXPECT_EQ(answer["output"][2]["name"], "f");
  EXPECT_EQ(answer["output"][2]["arguments"], "{\"s\": \"a\"}");
  EXPECT_GT(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
}

TEST(Responses, AStreamAddsUpToItsLastEvent) {
  TestServer server(Reciting(kCallingAnswer));
  const auto events = EventsOf(server, ResponsesBody());
  ASSERT_GT(events.size(), 6u);
  EXPECT_EQ(events.front().type, "response.created");
  EXPECT_EQ(events.back().type, "response.completed");
  std::string text, arguments;
  std::vector<Json> items;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].data["sequence_number"], i);
    if (events[i].type == "response.output_text.delta") text += events[i].data["delta"];
    if (events[i].type == "response.function_call_arguments.delta") {
      arguments += events[i].data["delta"];
    }
    if (events[i].type == "response.output_item.done") items.push_back(events[i].data["item"]);
  }
  const Json& response = events.back().data["response"];
  EXPECT_EQ(text, response["output"][1]["content"][0]["text"]);
  EXPECT_EQ(arguments, response["output"][2]["arguments"]);
  EXPECT_EQ(Json(items), response["output"]);
}

TEST(Responses, LengthIsIncomplete) {
  TestServer server(Reciting("hello world"));
  Json body = ResponsesBody();
  body["max_output_tokens"] = 3;
  const Json answer = server.Call("/v1/responses", body);
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(EventsOf(server, body).back().type, "response.incomplete");
}

TEST(Responses, ACallThatIsCutOffIsIncomplete) {
  TestServer server(
      Reciting("<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one two\"}}</tool_call>"));
  Json body = ResponsesBody();
  body["max_output_tokens"] = 50;
  const Json answer = server.Call("/v1/responses", body);
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["output"][0]["type"], "function_call");
  EXPECT_EQ(answer["output"][0]["status"], "incomplete");
  body["max_output_tokens"] = 200;
  EXPECT_EQ(server.Call("/v1/responses", body)["output"][0]["status"], "completed");
}

TEST(Responses, WhatIsNotServedIsRefused) {
  TestServer server(Reciting("x"));
  Json body = ResponsesBody();
  body["conversation"] = "conv_1";
  EXPECT_EQ(server.Call("/v1/responses", body, 400)["error"]["param"], "conversation");
  body = {{"input", "x"}, {"background", true}, {"store", false}};
  EXPECT_EQ(server.Call("/v1/responses", body, 400)["error"]["param"], "background");
  body = {{"input", "x"}, {"previous_response_id", "resp_1"}};
  const Json error = server.Call("/v1/responses", body, 400)["error"];
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_EQ(error["code"], "previous_response_not_found");
}

TEST(Responses, ARequiredCallWinsOverAFormat) {
  TestServer server(Reciting("x"));
  Json body = ResponsesBody();
  body["text"] = {
      {"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"enum", {1}}}}}}};
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"name", "f"}}}) {
    body["tool_choice"] = choice;
    auto reply = server.Post("/v1/responses", body);
    ASSERT_TRUE(reply->WaitDone());
    ASSERT_EQ(reply->status(), 200) << reply->body();
    EXPECT_EQ(reply->Header("x-millrace-ignored"), "text.format");
  }
}

TEST(Responses, LogprobsOfTheText) {
  TestServer server(Reciting(kCallingAnswer));
  Json body = ResponsesBody();
  body["include"] = {"message.output_text.logprobs"};
  body["top_logprobs"] = 2;
  const Json answer = server.Call("/v1/responses", body);
  const Json& part = answer["output"][1]["content"][0];
  std::string text;
  for (const Json& token : part["logprobs"]) {
    text += token["token"].get<std::string>();
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
  }
  EXPECT_EQ(text, "Sure.");
  std::string streamed, done;
  for (const TypedEvent& event : EventsOf(server, body)) {
    if (event.type != "response.output_text.delta" && event.type != "response.output_text.done") {
      continue;
    }
    for (const Json& token : event.data["logprobs"]) {
      (event.type.ends_with("delta") ? streamed : done) += token["token"].get<std::string>();
    }
  }
  EXPECT_NE(streamed.find("Sure."), std::string::npos) << streamed;
  EXPECT_EQ(streamed, done);
  body.erase("include");
  auto reply = server.Post("/v1/responses", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "top_logprobs");
  EXPECT_TRUE(Json::parse(reply->body())["output"][1]["content"][0]["logprobs"].empty());
}

// ---- stored

Json CallMethod(TestServer& server, const std::string& method, const std::string& path,
                int status = 200, const std::string& key = "") {
  std::vector<std::pair<std::string, std::string>> headers;
  if (!key.empty()) headers.emplace_back("authorization", "Bearer " + key);
  auto reply = server.Start(method, path, "", headers);
  EXPECT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), status) << reply->body();
  return Json::parse(reply->body());
}

std::string PathOf(const Json& response) {
  return "/v1/responses/" + response["id"].get<std::string>();
}

// The response once it has ended.
Json EndedResponse(TestServer& server, const std::string& path) {
  Json response;
  for (int i = 0; i < 1000; ++i) {
    response = server.Get(path);
    if (response["status"] != "queued" && response["status"] != "in_progress") return response;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "still " << response["status"];
  return response;
}

TEST(StoredResponses, AreFetchedAndDeleted) {
  TestServer server(Reciting(kCallingAnswer));
  const Json whole = server.Call("/v1/responses", ResponsesBody());
  EXPECT_EQ(server.Get(PathOf(whole)), whole);
  const Json streamed = EventsOf(server, ResponsesBody()).back().data["response"];
  EXPECT_EQ(server.Get(PathOf(streamed)), streamed);
  const Json items = server.Get(PathOf(whole) + "/input_items");
  ASSERT_EQ(items["data"].size(), 1u);
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "x");
  EXPECT_EQ(CallMethod(server, "DELETE", PathOf(whole))["deleted"], true);
  EXPECT_EQ(server.Get(PathOf(whole), 404)["error"]["code"], "response_not_found");
  CallMethod(server, "DELETE", PathOf(whole), 404);
  EXPECT_EQ(CallMethod(server, "POST", PathOf(streamed) + "/cancel", 400)["error"]["param"], "id");
  CallMethod(server, "POST", PathOf(streamed) + "/other", 404);
}

TEST(StoredResponses, InputItemsComeInPages) {
  TestServer server(Reciting("hello"));
  Json body = ResponsesBody();
  body["input"] = Json::array();
  for (const char* text : {"a", "b", "c"}) {
    body["input"].push_back({{"role", "user"}, {"content", text}});
  }
  const std::string path = PathOf(server.Call("/v1/responses", body)) + "/input_items";
  const auto texts = [&](const std::string& query) {
    const Json page = server.Get(path + query);
    std::string all;
    for (const Json& item : page["data"]) all += item["content"][0]["text"].get<std::string>();
    return all + (page["has_more"] == true ? "+" : "");
  };
  EXPECT_EQ(texts(""), "cba");
  EXPECT_EQ(texts("?limit=2"), "cb+");
  EXPECT_EQ(texts("?order=asc&limit=1"), "a+");
  const auto first = server.Get(path + "?order=asc")["first_id"].get<std::string>();
  EXPECT_EQ(texts("?order=asc&after=" + first), "bc");
  EXPECT_EQ(texts("?after=" + first), "");
  EXPECT_EQ(server.Get(path + "?limit=101", 400)["error"]["param"], "limit");
  EXPECT_EQ(server.Get(path + "?order=up", 400)["error"]["param"], "order");
  EXPECT_EQ(server.Get(path + "?after=nothing", 400)["error"]["param"], "after");
}

TEST(StoredResponses, NotWithoutStore) {
  TestServer server(Reciting("hello"));
  Json body = ResponsesBody();
  body["store"] = false;
  const Json whole = server.Call("/v1/responses", body);
  EXPECT_EQ(whole["store"], false);
  server.Get(PathOf(whole), 404);
}

TEST(StoredResponses, AreContinued) {
  TestServer server(Reciting("hello"));
  const Json first = server.Call("/v1/responses", {{"input", "one"}, {"instructions", "brief"}});
  const Json second =
      server.Call("/v1/responses", {{"input", "two"}, {"previous_response_id", first["id"]}});
  const Json third =
      server.Call("/v1/responses", {{"input", "three"}, {"previous_response_id", second["id"]}});
  EXPECT_EQ(third["previous_response_id"], second["id"]);
  const auto turn = [](const char* role, const char* text) {
    return Json{{"role", role}, {"content", text}};
  };
  const Json whole = server.Call(
      "/v1/responses", {{"input",
                         {turn("user", "one"), turn("assistant", "hello"), turn("user", "two"),
                          turn("assistant", "hello"), turn("user", "three")}}});
  // The same prompt; instructions belong to one response.
  EXPECT_EQ(third["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
  EXPECT_GT(third["usage"]["input_tokens"], second["usage"]["input_tokens"]);
  CallMethod(server, "DELETE", PathOf(first));
  const Json error =
      server.Call("/v1/responses", {{"input", "x"}, {"previous_response_id", third["id"]}}, 400);
  EXPECT_EQ(error["error"]["code"], "previous_response_not_found");
}

TEST(StoredResponses, BelongToTheirKey) {
  TestServerOptions options = Reciting("hello");
  options.service.api_keys = ApiKeys::Create({"alice", "bob"}).value();
  TestServer server(options);
  const auto create = [&](const char* key, const Json& body) {
    auto reply = server.Start("POST", "/v1/responses", DumpJson(body),
                              {{"authorization", std::string("Bearer ") + key}});
    EXPECT_TRUE(reply->WaitDone());
    return Json::parse(reply->body());
  };
  const Json response = create("alice", {{"input", "x"}});
  CallMethod(server, "GET", PathOf(response), 200, "alice");
  CallMethod(server, "GET", PathOf(response), 404, "bob");
  CallMethod(server, "GET", PathOf(response) + "/input_items", 404, "bob");
  CallMethod(server, "DELETE", PathOf(response), 404, "bob");
  CallMethod(server, "POST", PathOf(response) + "/cancel", 404, "bob");
  const Json stolen = create("bob", {{"input", "x"}, {"previous_response_id", response["id"]}});
  EXPECT_EQ(stolen["error"]["code"], "previous_response_not_found");
}

// ---- in the background

Json BackgroundBody() {
  Json body = ResponsesBody();
  body["background"] = true;
  return body;
}

// Of a stream whose head has come, perhaps without an event.
std::string PathOfStream(const RecordingReply& reply) {
  for (int i = 0; i < 1000 && reply.Header("x-stream-id").empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "/v1/responses/" + reply.Header("x-stream-id");
}

TEST(BackgroundResponses, AreFetchedWhenTheyHaveEnded) {
  TestServer server(Reciting(kCallingAnswer));
  server.gate.Close();
  const Json queued = server.Call("/v1/responses", BackgroundBody());
  EXPECT_EQ(queued["status"], "queued");
  EXPECT_EQ(CallMethod(server, "DELETE", PathOf(queued), 409)["error"]["code"],
            "response_in_progress");
  server.gate.Open();
  const Json ended = EndedResponse(server, PathOf(queued));
  const Json whole = server.Call("/v1/responses", ResponsesBody());
  EXPECT_EQ(ended["status"], "completed");
  EXPECT_EQ(ended["output"].size(), whole["output"].size());
  EXPECT_EQ(ended["output"][1]["content"], whole["output"][1]["content"]);
  EXPECT_EQ(ended["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
  EXPECT_EQ(ended["id"], queued["id"]);
  EXPECT_EQ(ended["created_at"], queued["created_at"]);
}

TEST(BackgroundResponses, WhatIsWrongIsSaidAtOnce) {
  TestServer server(Reciting("hello"));
  Json body = BackgroundBody();
  body["temperature"] = 1000;
  EXPECT_EQ(server.Call("/v1/responses", body, 400)["error"]["param"], "temperature");
  body = BackgroundBody();
  body["model"] = "other";
  server.Call("/v1/responses", body, 404);
  body = BackgroundBody();
  body["input"] = std::string(2000, 'x');
  EXPECT_EQ(server.Call("/v1/responses", body, 400)["error"]["code"], "context_length_exceeded");
}

TEST(BackgroundResponses, WhatFailsSaysWhy) {
  TestServer server(Reciting("hello"));
  Json body = BackgroundBody();
  body["text"] = {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", 7}}}}}};
  const Json queued = server.Call("/v1/responses", body);
  const Json ended = EndedResponse(server, PathOf(queued));
  EXPECT_EQ(ended["status"], "failed");
  EXPECT_NE(ended["error"]["message"].get<std::string>().find("text.format"), std::string::npos);
}

TEST(BackgroundResponses, AreCancelled) {
  TestServer server(Reciting(kCallingAnswer));
  server.gate.Close();
  Json body = BackgroundBody();
  body["stream"] = true;
  auto follower = server.Post("/v1/responses", body);
  Json id;
  const Json queued = server.Call("/v1/responses", BackgroundBody());
  const Json cancelled = CallMethod(server, "POST", PathOf(queued) + "/cancel");
  EXPECT_EQ(cancelled["status"], "cancelled");
  server.gate.Open();
  EXPECT_TRUE(server.WaitUntilFree());
  EXPECT_EQ(server.Get(PathOf(queued))["status"], "cancelled");
  EXPECT_EQ(CallMethod(server, "POST", PathOf(queued) + "/cancel")["status"], "cancelled");
  EXPECT_TRUE(follower->WaitDone());  // another one goes on
  EXPECT_EQ(TypedEvents(follower->body()).back().type, "response.completed");
}

std::string WithoutEventIds(const std::string& events) {
  std::string kept;
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = events.find('\n', begin) + 1;
    if (events.compare(begin, 4, "id: ") != 0) kept.append(events, begin, end - begin);
    begin = end;
  }
  return kept;
}

TEST(BackgroundResponses, TheirEventsAreFollowedFromAnyOfThem) {
  TestServer server(Reciting(kCallingAnswer));
  Json body = BackgroundBody();
  body["stream"] = true;
  auto first = server.Post("/v1/responses", body);
  ASSERT_TRUE(first->WaitWrites(1));
  first->Disconnect();  // that ends nothing
  const auto seen = TypedEvents(first->body().substr(0, first->body().rfind("\n\n") + 2));
  const std::string path = PathOf(seen.front().data["response"]);
  EXPECT_EQ(EndedResponse(server, path)["status"], "completed");
  auto all = server.Start("GET", path + "?stream=true");
  ASSERT_TRUE(all->WaitDone());
  const auto events = TypedEvents(all->body());
  EXPECT_EQ(events.back().type, "response.completed");
  EXPECT_EQ(events.back().data["response"], server.Get(path));
  for (size_t i = 0; i < events.size(); ++i) {
    auto rest = server.Start("GET", path + "?stream=true&starting_after=" + std::to_string(i));
    ASSERT_TRUE(rest->WaitDone());
    const auto left = TypedEvents(rest->body());
    ASSERT_EQ(left.size(), events.size() - i - 1);
    if (left.empty()) continue;
    EXPECT_EQ(left.front().data, events[i + 1].data);
  }
  server.Get(path + "?stream=true&starting_after=x", 400);
  server.Get(path + "?stream=perhaps", 400);
}

TEST(BackgroundResponses, OneThatIsRunningIsFollowed) {
  TestServer server(Reciting(kCallingAnswer));
  server.gate.Close();
  Json body = BackgroundBody();
  body["stream"] = true;
  auto first = server.Post("/v1/responses", body);
  const std::string path = PathOfStream(*first);
  auto second = server.Start("GET", path + "?stream=true&starting_after=1");
  server.gate.Open();
  ASSERT_TRUE(second->WaitDone());
  ASSERT_EQ(second->status(), 200) << second->body();
  const auto events = TypedEvents(WithoutEventIds(second->body()));
  EXPECT_EQ(events.front().data["sequence_number"], 2);
  EXPECT_EQ(events.back().type, "response.completed");
  const Json plain = server.Call("/v1/responses", ResponsesBody());
  server.Get(PathOf(plain) + "?stream=true", 400);
}

TEST(BackgroundResponses, PingsAreNoEvents) {
  TestServerOptions options = Reciting(kCallingAnswer);
  options.service.ping_after = Duration::Millis(20);
  TestServer server(options);
  server.gate.Close();
  Json body = BackgroundBody();
  body["stream"] = true;
  auto reply = server.Post("/v1/responses", body);
  ASSERT_TRUE(reply->WaitWrites(2));
  server.gate.Open();
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_NE(reply->body().find(": ping"), std::string::npos);
  auto again = server.Start(
      "GET", "/v1/responses/" + reply->Header("x-stream-id") + "?stream=true&starting_after=0");
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->body().find(": ping"), std::string::npos);
  EXPECT_EQ(TypedEvents(again->body()).front().data["sequence_number"], 1);
}

TEST(BackgroundResponses, SurviveTheServer) {
  const std::shared_ptr<ObjectStore> store = ObjectStore::Open({}).value();
  TestServerOptions options = Reciting(std::string(600, 'a'));
  options.service.store = store;
  Json body = {{"input", "x"}, {"background", true}, {"temperature", 0.8}};
  std::string path, streamed_path, seen;
  {
    TestServer server(options);
    server.gate.Close();
    path = PathOf(server.Call("/v1/responses", body));
    body["stream"] = true;
    auto follower = server.Post("/v1/responses", body);
    streamed_path = PathOfStream(*follower);
    // The requests are aborted before a step can end.
    std::thread drain([&server] { server.service->Drain(Duration{}); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server.gate.Open();
    drain.join();
  }
  EXPECT_EQ(store->ListOpen(ObjectKind::kResponse)->size(), 2u);
  TestServer server(options);
  const Json ended = EndedResponse(server, path);
  EXPECT_EQ(ended["status"], "completed");
  EXPECT_EQ(ended["output"][0]["content"][0]["text"], std::string(600, 'a'));
  EXPECT_EQ(EndedResponse(server, streamed_path)["output"][0]["content"],
            ended["output"][0]["content"]);
  // It is shown as ended a moment before that is stored.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!store->ListOpen(ObjectKind::kResponse)->empty()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  auto all = server.Start("GET", streamed_path + "?stream=true&starting_after=3");
  ASSERT_TRUE(all->WaitDone());
  EXPECT_EQ(TypedEvents(all->body()).front().data["sequence_number"], 4);
}

}  // namespace
}  // namespace millrace::serve
