// What the server says of itself, and options that hold for several routes.
#include <gtest/gtest.h>

#include <string>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

TEST(Clamping, IsAnOptionOfTheServer) {
  TestServerOptions options;
  options.service.clamps_max_tokens = true;
  TestServer server(std::move(options));
  const Json chat = {{"max_completion_tokens", 32000},
                     {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  const Json answer = server.Call("/v1/chat/completions", chat);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["total_tokens"], 256);
  Json body = {{"prompt", {"aaa", "a"}}, {"max_tokens", 32000}};
  EXPECT_EQ(server.Call("/v1/completions", body)["usage"]["total_tokens"], 512);
  body = {{"prompt", "abc"}, {"max_tokens", 32000}, {"truncate_prompt_tokens", -1}};
  EXPECT_EQ(server.Call("/v1/completions", body)["usage"]["prompt_tokens"], 3);
  body["min_tokens"] = 300;
  server.Call("/v1/completions", body, 400);
}

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
  EXPECT_EQ(info["models"], Json::array({"tiny"}));
  EXPECT_EQ(info["tool_call_parser"], "hermes");
  EXPECT_EQ(info["constrained_output"], true);
  const Json tokenizer = server.Get("/tokenizer_info");
  EXPECT_EQ(tokenizer["vocab_size"], kTinyVocab);
  EXPECT_EQ(tokenizer["eos_token_ids"], Json::array({kTinyEos}));
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

}  // namespace
}  // namespace millrace::serve
