// Anthropic's Messages API and ollama's: the same answers as those of the chat route.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "serve/messages_api.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

constexpr char kAnswer[] =
    "<think>hm</think>Sure.<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}</tool_call>";

std::vector<TypedEvent> EventsOf(TestServer& server, const std::string& path, Json body) {
  body["stream"] = true;
  auto reply = server.Post(path, body);
  EXPECT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 200) << reply->body();
  return TypedEvents(reply->body());
}

Json ChatOf(const Parsed<TranslatedRequest>& parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return {{"error", error->message}};
  return Json::parse(std::get<TranslatedRequest>(parsed).chat);
}

// ---- Messages

Json MessagesBody() {
  return {{"max_tokens", 200},
          {"messages", {{{"role", "user"}, {"content", "x"}}}},
          {"tools", {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}}}};
}

TEST(Messages, AreChatRequests) {
  const Json chat = ChatOf(ChatOfMessages(R"({
      "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "be brief"}],
      "stop_sequences": ["x"], "temperature": 0.5, "top_k": 3,
      "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
      "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
      "thinking": {"type": "enabled", "budget_tokens": 7},
      "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
          {"type": "tool_use", "id": "c1", "name": "f", "input": {"z": 1, "a": 2}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "r"}]},
          {"type": "text", "text": "and?"}]}]})",
                                          false));
  EXPECT_EQ(chat, Json::parse(R"({
      "model": "m", "max_tokens": 5, "stop": ["x"], "temperature": 0.5, "top_k": 3,
      "tools": [{"type": "function", "function":
        {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
      "tool_choice": "required", "parallel_tool_calls": false,
      "chat_template_kwargs": {"enable_thinking": true}, "thinking_token_budget": 7,
      "messages": [{"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
          "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "user", "content": "and?"}]})"));
}

TEST(Messages, AWholeAnswer) {
  TestServer server(Reciting(kAnswer));
  const Json answer = server.Call("/v1/messages", MessagesBody());
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  ASSERT_EQ(answer["content"].size(), 3u);
  EXPECT_EQ(answer["content"][0]["thinking"], "hm");
  EXPECT_EQ(answer["content"][1], Json({{"type", "text"}, {"text", "Sure."}}));
  EXPECT_EQ(answer["content"][2]["name"], "f");
  EXPECT_EQ(answer["content"][2]["input"], Json({{"s", "a"}}));
  EXPECT_GT(answer["usage"]["output_tokens"], 0);
}

TEST(Messages, AStreamOfBlocks) {
  TestServer server(Reciting(kAnswer));
  std::string order, text, thinking, input;
  for (const TypedEvent& event : EventsOf(server, "/v1/messages", MessagesBody())) {
    if (event.type == "content_block_start") {
      order += event.data["content_block"]["type"].get<std::string>() + " ";
    }
    if (event.type != "content_block_delta") {
      order += event.type.starts_with("message") ? event.type + " " : "";
      continue;
    }
    const Json& delta = event.data["delta"];
    text += delta.value("text", "");
    thinking += delta.value("thinking", "");
    input += delta.value("partial_json", "");
  }
  EXPECT_EQ(order, "message_start thinking text tool_use message_delta message_stop ");
  EXPECT_EQ(text, "Sure.");
  EXPECT_EQ(thinking, "hm");
  EXPECT_EQ(input, "{\"s\": \"a\"}");
}

TEST(Messages, StopReasons) {
  TestServer server(Reciting("hello world"));
  Json body = MessagesBody();
  body["max_tokens"] = 3;
  EXPECT_EQ(server.Call("/v1/messages", body)["stop_reason"], "max_tokens");
  body["max_tokens"] = 50;
  EXPECT_EQ(server.Call("/v1/messages", body)["stop_reason"], "end_turn");
  body["stop_sequences"] = {"wor"};
  const Json stopped = server.Call("/v1/messages", body);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "wor");
}

TEST(Messages, ErrorsHaveTheirForm) {
  TestServer server(Reciting("x"));
  Json body = MessagesBody();
  body.erase("max_tokens");
  Json error = server.Call("/v1/messages", body, 400);
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  EXPECT_NE(error["error"]["message"].get<std::string>().find("max_tokens"), std::string::npos);
  body = MessagesBody();
  body["model"] = "other";
  EXPECT_EQ(server.Call("/v1/messages", body, 404)["error"]["type"], "not_found_error");
  body = MessagesBody();
  body["messages"][0]["content"] = {{{"type", "image"}, {"source", Json::object()}}};
  EXPECT_EQ(server.Call("/v1/messages", body, 400)["error"]["type"], "invalid_request_error");
}

TEST(Messages, FieldsWithoutEffectAreNamed) {
  TestServer server(Reciting("x"));
  Json body = MessagesBody();
  body["metadata"] = {{"user_id", "u"}};
  body["containers"] = "c";
  auto reply = server.Post("/v1/messages", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "containers, metadata");
}

TEST(Messages, TokensAreCounted) {
  TestServer server(Reciting("x"));
  const Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  const auto count = server.Call("/v1/messages/count_tokens", body)["input_tokens"].get<int>();
  EXPECT_EQ(count, server.Call("/tokenize", body)["count"]);
  EXPECT_EQ(server.Call("/v1/messages/count_tokens", Json::object(), 400)["type"], "error");
}

// ---- ollama

Json OllamaBody() {
  return {{"model", "tiny:latest"},
          {"messages", {{{"role", "user"}, {"content", "x"}}}},
          {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
          {"options", {{"num_predict", 200}, {"num_ctx", 4096}}}};
}

TEST(Ollama, AWholeAnswer) {
  TestServer server(Reciting(kAnswer));
  Json body = OllamaBody();
  body["stream"] = false;
  auto reply = server.Post("/api/chat", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "options.num_ctx");
  const Json answer = Json::parse(reply->body());
  EXPECT_EQ(answer["message"]["content"], "Sure.");
  EXPECT_EQ(answer["message"]["thinking"], "hm");
  EXPECT_EQ(answer["message"]["tool_calls"][0]["function"]["arguments"], Json({{"s", "a"}}));
  EXPECT_EQ(answer["done"], true);
  EXPECT_EQ(answer["done_reason"], "stop");
  EXPECT_GT(answer["eval_count"], 0);
}

TEST(Ollama, AStreamIsLinesOfJson) {
  TestServer server(Reciting(kAnswer));
  auto reply = server.Post("/api/chat", OllamaBody());
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("content-type"), "application/x-ndjson");
  std::string content, thinking;
  std::vector<Json> lines;
  std::istringstream in(reply->body());
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
    content += lines.back()["message"].value("content", "");
    thinking += lines.back()["message"].value("thinking", "");
    EXPECT_EQ(lines.back()["done"], in.peek() == EOF);
  }
  EXPECT_EQ(content, "Sure.");
  EXPECT_EQ(thinking, "hm");
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines[lines.size() - 2]["message"]["tool_calls"][0]["function"]["name"], "f");
}

TEST(Ollama, GenerateTagsAndShow) {
  TestServer server(Reciting("hello"));
  const Json body = {{"model", "tiny"}, {"prompt", "x"}, {"stream", false}};
  EXPECT_EQ(server.Call("/api/generate", body)["response"], "hello");
  EXPECT_EQ(server.Get("/api/tags")["models"][0]["name"], "tiny");
  const Json shown = server.Call("/api/show", {{"model", "tiny:latest"}});
  EXPECT_EQ(shown["capabilities"], Json({"completion", "tools", "thinking"}));
  EXPECT_TRUE(server.Call("/api/show", {{"model", "other"}}, 404)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/chat", Json::object(), 400)["error"].is_string());
  const Json raw = {{"prompt", "x"}, {"raw", true}};
  EXPECT_NE(server.Call("/api/generate", raw, 400)["error"].get<std::string>().find("raw"),
            std::string::npos);
}

// ---- small routes

TEST(SmallRoutes, TemplateLoadAndPing) {
  TestServer server;
  const Json body = {{"messages", {{{"role", "user"}, {"content", "<|end|>x"}}}}};
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "user:<|end|>x<|end|>assistant:");
  EXPECT_EQ(server.Call("/apply-template", {{"prompt", "x"}}, 400)["error"]["param"], "messages");
  EXPECT_EQ(server.Get("/load")["server_load"], 0);
  EXPECT_EQ(server.Get("/ping")["status"], "ok");
}

TEST(SmallRoutes, WhatTheServerIs) {
  TestServer server(Reciting("x"));
  const Json info = server.Get("/server_info");
  EXPECT_EQ(info["models"], Json({"tiny"}));
  EXPECT_EQ(info["tool_call_parser"], "hermes");
  EXPECT_EQ(info["constrained_output"], true);
  const Json tokenizer = server.Get("/tokenizer_info");
  EXPECT_EQ(tokenizer["vocab_size"], kTinyVocab);
  EXPECT_TRUE(tokenizer["chat_template"].is_string());
}

TEST(OpenApi, TheExamplesOfTheDocumentAreAnswered) {
  TestServer server(Reciting("hello"));
  const Json document = server.Get("/openapi.json");
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  int examples = 0;
  for (const auto& [path, item] : document["paths"].items()) {
    const Json body =

        item.value(Json::json_pointer("/post/requestBody/content/application~1json"), Json());
    if (!body.contains("example")) continue;
    auto reply = server.Post(path, body["example"]);
    ASSERT_TRUE(reply->WaitDone()) << path;
    EXPECT_EQ(reply->status(), 200) << path << ": " << reply->body();
    EXPECT_EQ(reply->Header("x-millrace-ignored"), "") << path;
    ++examples;
  }
  EXPECT_GE(examples, 8);
}

TEST(Ollama, Embeddings) {
  TestServer server;
  Json answer = server.Call("/api/embed",
                            {{"model", "tiny:latest"}, {"input", {"aab", "c"}}, {"dimensions", 3}});
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["prompt_eval_count"], 4);
  ASSERT_EQ(answer["embeddings"].size(), 2u);
  EXPECT_EQ(answer["embeddings"][1], Json({0.0, 0.0, 1.0}));
  EXPECT_EQ(server.Call("/api/embed", {{"input", "c"}})["embeddings"].size(), 1u);
  EXPECT_EQ(server.Call("/api/embeddings", {{"prompt", "b"}})["embedding"],
            Json({0.0, 1.0, 0.0, 0.0}));
  // What does not fit is cut off at the end, unless that is refused.
  Json body = {{"input", "b" + std::string(256, 'c')}};
  EXPECT_GT(server.Call("/api/embed", body)["embeddings"][0][1], 0.0);
  body["truncate"] = false;
  EXPECT_TRUE(server.Call("/api/embed", body, 400)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/embed", {{"input", 5}}, 400)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/embeddings", {{"prompt", ""}}, 400)["error"].is_string());
}

}  // namespace
}  // namespace millrace::serve
