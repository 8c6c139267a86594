// The answer names the fields that are accepted without effect. Unsupported fields that would
// change the answer's meaning are refused. Messages must have one of the known roles.
#include "serve/request/ignored_fields.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

const char kCompletions[] = "/v1/completions";
const char kChat[] = "/v1/chat/completions";

Json CompletionBody() { return {{"prompt", "a"}, {"max_tokens", 2}}; }
Json ChatBody() {
  return {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 2}};
}
Json Tools() { return {{{"type", "function"}, {"function", {{"name", "f"}}}}}; }

class IgnoredFields : public testing::Test {
 protected:
  std::string Ignored(const std::string& path, Json body, const Json& more = Json::object()) {
    body.update(more);
    auto reply = server_.Post(path, body);
    EXPECT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 200) << reply->body();
    return reply->Header("x-millrace-ignored");
  }

  TestServer server_;
};

TEST_F(IgnoredFields, NoFieldIsNamedIfAllHaveAnEffect) {
  const Json options = {{"model", "tiny"},
                        {"temperature", 0.5},
                        {"seed", 3},
                        {"stream", false},
                        {"n", 2},
                        {"stop", {"x"}},
                        {"skip_special_tokens", true},
                        {"ignore_eos", true},
                        {"priority", 1},
                        {"cache_salt", "s"},
                        {"user", nullptr},
                        {"response_format", {{"type", "text"}}}};
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), options), "");
  EXPECT_EQ(Ignored(kChat, ChatBody(), options), "");
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"tools", Json::array()}, {"tool_choice", "auto"}}), "");
}

// Each field with its usual value, and with one that would have an effect elsewhere.
TEST_F(IgnoredFields, KnownFieldsAreNamedUnlessTheyHaveTheirUsualValue) {
  struct Case {
    const char* field;
    Json usual;
    Json set;
    bool chat_only = false;
  };
  const std::vector<Case> cases = {{"user", nullptr, "u-1"},
                                   {"safety_identifier", nullptr, "s"},
                                   {"metadata", Json::object(), {{"a", "b"}}},
                                   {"store", false, true},
                                   {"service_tier", "auto", "flex"},
                                   {"prompt_cache_retention", nullptr, "24h"},
                                   {"length_penalty", 1.0, 0.5},
                                   {"length_penalty", 1, 2},
                                   {"spaces_between_special_tokens", true, false},
                                   {"return_prompt_text", false, true},
                                   {"return_token_offsets", false, true},
                                   {"kv_transfer_params", nullptr, {{"do_remote_decode", true}}},
                                   {"vllm_xargs", Json::object(), {{"x", 1}}},
                                   {"verbosity", "medium", "low", true},
                                   {"prediction", nullptr, {{"type", "content"}}, true},
                                   {"media_io_kwargs", Json::object(), {{"video", 1}}, true},
                                   {"mm_processor_kwargs", Json::object(), {{"x", 1}}, true}};
  for (const Case& c : cases) {
    EXPECT_EQ(Ignored(kChat, ChatBody(), {{c.field, c.usual}}), "") << c.field;
    EXPECT_EQ(Ignored(kChat, ChatBody(), {{c.field, c.set}}), c.field);
    if (c.chat_only) continue;
    EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{c.field, c.usual}}), "") << c.field;
    EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{c.field, c.set}}), c.field);
  }
}

TEST_F(IgnoredFields, ToolsAreNamedWhenAModelCouldCallThem) {
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"tools", Tools()}}), "tools");
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"tools", Tools()}, {"tool_choice", "auto"}}), "tools");
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"tools", Tools()}, {"tool_choice", "none"}}), "");
  EXPECT_EQ(
      Ignored(kChat, ChatBody(),
              {{"tools", Tools()}, {"parallel_tool_calls", false}, {"reasoning_effort", "low"}}),
      "tools");
}

TEST_F(IgnoredFields, UnknownFieldsAreNamedToo) {
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{"temprature", 0.1}}), "temprature");
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{"messages", "x"}}), "messages");
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"prompt", "x"}, {"enable_thinking", false}}),
            "enable_thinking, prompt");
  EXPECT_EQ(Ignored("/tokenize", {{"prompt", "x"}, {"add_generation_promt", true}}),
            "add_generation_promt");
  EXPECT_EQ(Ignored("/detokenize", {{"tokens", {5}}, {"skip", 1}}), "skip");
}

TEST_F(IgnoredFields, UnknownFieldsInsideOthersAreNamedByTheirPaths) {
  const auto with = [](const char* field, Json value) { return Json{{field, std::move(value)}}; };
  const Json schema = {{"type", "object"}, {"x-own", 1}};
  EXPECT_EQ(
      Ignored(kChat, ChatBody(), with("response_format", {{"type", "text"}, {"schema", schema}})),
      "response_format.schema");
  EXPECT_EQ(Ignored(kChat, {{"messages",
                             {{{"role", "user"},
                               {"content", {{{"type", "text"}, {"text", "a"}, {"lang", "en"}}}},
                               {"mood", "sad"}}}},
                            {"max_tokens", 1}}),
            "messages[0].content[0].lang, messages[0].mood");
  EXPECT_EQ(
      Ignored(kChat, ChatBody(), {{"stream", true}, {"stream_options", {{"include_all", true}}}}),
      "stream_options.include_all");
  EXPECT_EQ(Ignored("/v1/rerank",
                    {{"query", "a"}, {"documents", {{{"text", "b"}, {"image", "c"}}, "d"}}}),
            "documents[0].image");
  EXPECT_EQ(Ignored("/tokenize", {{"messages", {{{"role", "user"}, {"content", "a"}, {"k", 1}}}}}),
            "messages[0].k");
}

// What clients repeat of an answer, and what is unset, is no news.
TEST_F(IgnoredFields, UsualMembersOfMessagesAreNotNamed) {
  const Json call = {{"id", "c"},
                     {"type", "function"},
                     {"index", 0},
                     {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const Json messages = {{{"role", "user"}, {"content", "a"}, {"name", "n"}},
                         {{"role", "assistant"},
                          {"content", nullptr},
                          {"refusal", nullptr},
                          {"annotations", Json::array()},
                          {"audio", nullptr},
                          {"function_call", nullptr},
                          {"reasoning_content", "r"},
                          {"tool_calls", {call}}},
                         {{"role", "tool"}, {"content", "b"}, {"tool_call_id", "c"}}};
  EXPECT_EQ(Ignored(kChat, {{"messages", messages}, {"max_tokens", 1}}), "");
}

// A template may show any member of a message, and shows tools as a whole.
TEST(IgnoredFieldsOfTemplates, WhatTheTemplateShowsHasAnEffect) {
  TestServerOptions options;
  options.service.takes_templates = true;
  TestServer server(std::move(options));
  Json body = ChatBody();
  body["messages"][0]["mood"] = "sad";
  body["tools"] = Tools();
  body["tools"][0]["function"]["kind"] = "k";
  body["tool_choice"] = "none";
  const auto ignored = [&](const char* source) {
    body["chat_template"] = source;
    auto reply = server.Post(kChat, body);
    EXPECT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 200) << reply->body();
    return reply->Header("x-millrace-ignored");
  };
  EXPECT_EQ(ignored("x{{ messages[0].content }}"), "messages[0].mood, tools[0].function.kind");
  EXPECT_EQ(ignored("x{{ messages[0].mood }}"), "tools[0].function.kind");
  EXPECT_EQ(ignored("x{{ messages | tojson }}{{ tools | tojson }}"), "");
}

TEST_F(IgnoredFields, NamesAreBoundedAndSafeInAHeader) {
  Json nested = ChatBody();
  for (int i = 10; i < 60; ++i) nested["messages"][0]["zz" + std::to_string(i)] = i;
  const std::string paths = Ignored(kChat, nested);
  EXPECT_EQ(std::count(paths.begin(), paths.end(), ','), 16) << paths;
  Json many = CompletionBody();
  for (int i = 10; i < 40; ++i) many["zz" + std::to_string(i)] = i;
  const std::string value = Ignored(kCompletions, many);
  EXPECT_EQ(std::count(value.begin(), value.end(), ','), 16);
  EXPECT_TRUE(value.starts_with("zz10, zz11, ")) << value;
  EXPECT_TRUE(value.ends_with("zz25, ...")) << value;
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{std::string(1000, 'n'), 1}}),
            std::string(64, 'n'));
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), {{"a\r\nset-cookie: x, y", 1}}),
            "a??set-cookie??x??y");
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(),
                    {{"gr\xc3\xb6\xc3\x9f"
                      "e",
                      1}}),
            "gr????e");
}

TEST_F(IgnoredFields, StreamsCarryTheHeader) {
  const Json more = {
      {"stream", true}, {"user", "u"}, {"stream_options", {{"include_obfuscation", false}}}};
  EXPECT_EQ(Ignored(kCompletions, CompletionBody(), more),
            "stream_options.include_obfuscation, user");
  EXPECT_EQ(Ignored(kChat, ChatBody(), {{"stream", true}, {"tools", Tools()}}), "tools");
}

TEST(IgnoredFieldsOfStreams, AClientThatReconnectsGetsTheHeaderToo) {
  TestServerOptions options;
  options.service.resumable = {.enabled = true};
  TestServer server(std::move(options));
  Json body = CompletionBody();
  body.update({{"stream", true}, {"user", "u"}, {"request_id", "r"}});
  auto first = server.Post(kCompletions, body);
  ASSERT_TRUE(first->WaitDone());
  EXPECT_EQ(first->Header("x-millrace-ignored"), "user");
  auto again = server.Start("GET", "/v1/streams/cmpl-r");
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->Header("x-millrace-ignored"), "user");
}

TEST_F(IgnoredFields, BrowsersMayReadTheHeader) {
  auto reply =
      server_.Start("POST", kCompletions, R"({"prompt": "a", "max_tokens": 1, "user": "u"})",
                    {{"Origin", "https://page.example"}});
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_NE(reply->Header("access-control-expose-headers").find("x-millrace-ignored"),
            std::string::npos);
}

TEST_F(IgnoredFields, FieldsThatWouldChangeTheAnswerAreRefused) {
  struct Case {
    const char* path;
    const char* field;
    Json value;
  };
  for (const Case& c :
       std::vector<Case>{{kCompletions, "repetition_detection", {{"max_pattern_size", 4}}},
                         {kChat, "documents", {{{"text", "x"}}}},
                         {kChat, "web_search_options", {{"search_context_size", "low"}}},
                         {kChat, "add_special_tokens", true},
                         {"/tokenize", "chat_template", "{{ 1 }}"},
                         {"/tokenize", "documents", {{{"text", "x"}}}}}) {
    Json body = c.path == kCompletions ? CompletionBody() : ChatBody();
    body[c.field] = c.value;
    const Json error = server_.Call(c.path, body, 400)["error"];
    EXPECT_EQ(error["param"], c.field);
    EXPECT_EQ(error["code"], "unsupported_parameter") << c.field;
    body[c.field] = nullptr;
    server_.Call(c.path, body);
  }
}

TEST(JoinedHeaders, HaveEachNameOnceInOrder) {
  const auto same = [](std::string_view name) { return std::string(name); };
  EXPECT_EQ(JoinIgnored("b, d", "a, b", same), "a, b, d");
  EXPECT_EQ(JoinIgnored("", "", same), "");
  EXPECT_EQ(JoinIgnored("x", "", [](std::string_view) { return "y z"; }), "y?z");
  EXPECT_EQ(JoinIgnored("a, ...", "b", same), "a, b, ...");
  std::string many = "n10";
  for (int i = 11; i < 30; ++i) many += ", n" + std::to_string(i);
  const std::string cut = JoinIgnored(many, "a", same);
  EXPECT_TRUE(cut.starts_with("a, n10, ")) << cut;
  EXPECT_TRUE(cut.ends_with("n24, ...")) << cut;
}

TEST_F(IgnoredFields, MessagesHaveOneOfTheKnownRoles) {
  for (const char* role : {"developer", "system", "user", "assistant", "tool", "function"}) {
    server_.Call(kChat, {{"messages", {{{"role", role}, {"content", "a"}}}}, {"max_tokens", 1}});
  }
  for (const char* path : {kChat, "/tokenize"}) {
    for (const char* role : {"", "User", "robot", "user ", "\x1b[31m"}) {
      const Json body = {
          {"messages", {{{"role", "user"}, {"content", "a"}}, {{"role", role}, {"content", "a"}}}}};
      const Json error = server_.Call(path, body, 400)["error"];
      EXPECT_EQ(error["param"], "messages");
      const std::string message = error["message"];
      EXPECT_TRUE(
          message.starts_with("messages[1].role must be one of developer, system, user, "
                              "assistant, tool, function, got \""))
          << message;
    }
  }
}

}  // namespace
}  // namespace millrace::serve
