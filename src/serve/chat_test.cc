// Chat completions and /tokenize through a real controller.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

Json Chat(const std::string& content) {
  return {{"messages", {{{"role", "user"}, {"content", content}}}}};
}

TEST(Chat, AnswersAsTheAssistant) {
  TestServer server;
  Json body = Chat("hi");
  body["max_completion_tokens"] = 5;
  const Json answer = server.Call("/v1/chat/completions", body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  // "user:hi" + <|end|> + "assistant:"
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 7 + 1 + 10);
}

TEST(Chat, StreamsRoleThenDeltasThenTheEnd) {
  TestServer server;
  Json body = Chat("hi");
  body["max_tokens"] = 5;
  body["stream_options"] = {{"include_usage", true}};
  const auto events = server.Stream("/v1/chat/completions", body);
  EXPECT_EQ(events.front()["object"], "chat.completion.chunk");
  EXPECT_EQ(events.front()["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(JoinedText(events), "hello");
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 5);
}

TEST(Chat, FillsTheContextByDefault) {
  TestServer server;
  const Json answer = server.Call("/v1/chat/completions", Chat("hi"));
  EXPECT_EQ(answer["usage"]["total_tokens"], 256);
}

TEST(Chat, Logprobs) {
  TestServer server;
  Json body = Chat("hi");
  body["max_tokens"] = 2;
  body["logprobs"] = true;
  body["top_logprobs"] = 1;
  const Json content =
      server.Call("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "h");
  EXPECT_EQ(content[0]["bytes"], Json::array({104}));
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "b");
}

TEST(Chat, PartsToolsAndTemplateVariablesReachTheTemplate) {
  TestServer server;
  auto render = [&](const Json& body) {
    const Json tokens = server.Call("/tokenize", body)["tokens"];
    return server.Call("/detokenize", {{"tokens", tokens}})["prompt"].get<std::string>();
  };
  const Json parts = {{{"type", "text"}, {"text", "one"}}, {{"type", "text"}, {"text", "two"}}};
  Json body = {{"messages", {{{"role", "user"}, {"content", parts}}}}};
  EXPECT_EQ(render(body), "user:one\ntwo<|end|>assistant:");
  body["add_generation_prompt"] = false;
  EXPECT_EQ(render(body), "user:one\ntwo<|end|>");
  body["chat_template_kwargs"] = {{"tone", "dry"}};
  EXPECT_EQ(render(body), "user:one\ntwo<|end|>tone:dry");
  body.erase("chat_template_kwargs");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_NE(render(body).find("tools:["), std::string::npos);
  body["tool_choice"] = "none";
  EXPECT_EQ(render(body), "user:one\ntwo<|end|>");
}

TEST(Chat, KeysKeepTheClientsOrder) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":)"
      R"({"name":"f","description":"d","parameters":{"z":1,"a":2}}}]})";
  auto parsed = ParseChatRequest(body, {.vocab_size = 10, .max_model_len = 64});
  const auto& conversation = std::get<ChatRequest>(parsed).conversation;
  EXPECT_NE(conversation.tools.find(R"("parameters":{"z":1,"a":2})"), std::string::npos)
      << conversation.tools;
}

// As the other APIs hand it over, without a text in between.
TEST(Chat, AnObjectIsReadAsItsText) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object",)"
      R"("schema":{"z":1,"a":2}},"max_tokens":3,"x":1,"tools":[{"type":"function","function":)"
      R"({"name":"f","parameters":{"z":1,"a":2}}}]})";
  const ParseContext context{.vocab_size = 10, .max_model_len = 64};
  const auto text = ParseChatRequest(body, context);
  const auto object = ParseChatObject(OrderedJson::parse(body), context);
  const auto& a = std::get<ChatRequest>(text);
  const auto& b = std::get<ChatRequest>(object);
  EXPECT_EQ(a.conversation.messages, b.conversation.messages);
  EXPECT_EQ(a.conversation.tools, b.conversation.tools);
  EXPECT_EQ(a.options.params.grammar, b.options.params.grammar);
  EXPECT_EQ(a.options.ignored, b.options.ignored);
  EXPECT_EQ(a.options.params.max_tokens, b.options.params.max_tokens);
}

TEST(Chat, SpecialTokensOfUsersStayText) {
  TestServer server;
  const Json plain = server.Call("/tokenize", Chat("xxxxxxx"));
  const Json crafted = server.Call("/tokenize", Chat("<|end|>"));
  EXPECT_EQ(plain["count"], crafted["count"]);
}

TEST(Tokenize, RoundTrip) {
  TestServer server;
  const Json answer =
      server.Call("/tokenize", {{"prompt", "the end"}, {"return_token_strs", true}});
  EXPECT_EQ(answer["count"], 5);
  EXPECT_EQ(answer["max_model_len"], 256);
  EXPECT_EQ(answer["tokens"][0], 257);
  EXPECT_EQ(answer["token_strs"][0], "the");
  EXPECT_EQ(server.Call("/detokenize", {{"tokens", answer["tokens"]}})["prompt"], "the end");
  EXPECT_EQ(server.Call("/tokenize", {{"prompt", ""}})["count"], 0);
  EXPECT_EQ(server.Call("/detokenize", {{"tokens", {-1}}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(server.Call("/detokenize", {{"tokens", {261}}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(server.Call("/detokenize", Json::object(), 400)["error"]["param"], "tokens");
}

}  // namespace
}  // namespace millrace::serve
