// What chat templates get of a request, and how their errors name its fields.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

Json Ask(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

// A conversation with one call, whose arguments are the JSON `arguments`.
Json WithCall(const Json& arguments) {
  const Json call = {
      {"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  return {{"messages",
           {Ask("q"),
            {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
            {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "r"}}}}};
}

constexpr char kItems[] =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in "
    "c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}";

// Where no form of the arguments helps (message_forms.h).
TEST(TemplateErrors, ArgumentsThatAreNoObjectAreNamed) {
  TestServer server(
      {.chat_templates = {{"default", std::string(kItems) +
                                          "{{ messages[1].tool_calls[0].function.arguments.city + "
                                          "'!' }}"}}});
  for (const auto& [arguments, shown] :
       std::vector<std::pair<Json, std::string>>{{R"({"city": "Par)", R"(got "{"city": "Par")"},
                                                 {"[1]", "got [1]"},
                                                 {"7", "got 7"},
                                                 {"null", "got null"},
                                                 {"plain words", R"(got "plain words")"},
                                                 {Json::array({1, 2}), "got [1, 2]"},
                                                 {true, "got true"}}) {
    const Json error = server.Call("/apply-template", WithCall(arguments), 400)["error"];
    const std::string message = error["message"];
    EXPECT_EQ(error["param"], "messages");
    EXPECT_NE(message.find("messages[1].tool_calls[0].function.arguments must be a JSON object"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find(shown), std::string::npos) << message;
  }
}

TEST(TemplateErrors, ArgumentsThatAreAnObjectOrNoneAreShown) {
  TestServer server({.chat_templates = {{"default", kItems}}});
  const auto shown = [&](const Json& arguments) {
    return server.Call("/apply-template", WithCall(arguments))["prompt"].get<std::string>();
  };
  EXPECT_EQ(shown(R"({"items": "a", "keys": 2})"), "items=a;keys=2;");
  EXPECT_EQ(shown({{"a", 1}}), "a=1;");
  EXPECT_EQ(shown("{}"), "");
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown(nullptr), "");
  Json body = WithCall(nullptr);
  body["messages"][1]["tool_calls"][0]["function"].erase("arguments");
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "");
}

// A template that shows arguments as they are has no trouble with a call that was cut off.
TEST(TemplateErrors, ACallThatWasCutOffIsShownWhereTheTemplateCan) {
  TestServer server({.chat_templates = {{"default",
                                         "{% for m in messages %}{% for c in m.tool_calls or [] %}"
                                         "{{ c.function.arguments }}{% endfor %}{% endfor %}"}}});
  EXPECT_EQ(server.Call("/apply-template", WithCall(R"({"city": "Par)"))["prompt"],
            R"({"city": "Par)");
}

TEST(TemplateErrors, WhatTheTemplateSaysIsPassedOn) {
  TestServer server({.chat_templates = {
                         {"default",
                          "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == "
                          "0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif "
                          "%}{{ m.content }}{% endfor %}"}}});
  const Json body = {{"messages", {Ask("a"), Ask("b")}}};
  const Json error = server.Call("/v1/chat/completions", body, 400)["error"];
  EXPECT_EQ(error["param"], "messages");
  const std::string message = error["message"];
  EXPECT_TRUE(
      message.starts_with("messages: the chat template says: Conversation roles must "
                          "alternate"))
      << message;
}

TEST(TemplateErrors, FieldsThatAreMissingAreNamed) {
  TestServer server({.chat_templates = {
                         {"default", "{% for m in messages %}{{ m.content + m.name }}{% endfor %}"},
                         {"tool_use",
                          "{% for t in tools %}{{ t.function.name + t.function.description }}"
                          "{% endfor %}"}}});
  Json body = {{"messages", {{{"role", "tool"}, {"tool_call_id", "c"}, {"content", "r"}}}}};
  Json error = server.Call("/apply-template", body, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("messages[0].name is missing"),
            std::string::npos)
      << error;
  body = {{"messages", {Ask("a")}},
          {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  error = server.Call("/apply-template", body, 400)["error"];
  EXPECT_EQ(error["param"], "tools");
  EXPECT_NE(error["message"].get<std::string>().find("tools[0].function.description is missing"),
            std::string::npos)
      << error;
}

TEST(TemplateErrors, ARequestMayNameATemplate) {
  TestServer server({.chat_templates = {{"default", "D"}, {"tool_use", "T"}, {"rag", "R"}}});
  Json body = {{"messages", {Ask("a")}}};
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "D");
  body["chat_template"] = "rag";
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "R");
  EXPECT_EQ(server.Call("/tokenize", body)["count"], 1);
  body["chat_template"] = "other";
  for (const char* path : {"/apply-template", "/v1/chat/completions"}) {
    const Json error = server.Call(path, body, 400)["error"];
    EXPECT_EQ(error["param"], "chat_template");
    EXPECT_NE(error["message"].get<std::string>().find("it has default, rag, tool_use"),
              std::string::npos)
        << error;
  }
  body.erase("chat_template");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "T");
  body["chat_template"] = "default";
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "D");
  const Json info = server.Get("/tokenizer_info");
  EXPECT_EQ(info["chat_template"], "D");
  EXPECT_EQ(info["chat_templates"], (Json{{"default", "D"}, {"tool_use", "T"}, {"rag", "R"}}));
}

TEST(TemplateErrors, PartsReachATemplateThatWantsThem) {
  TestServer server(
      {.chat_templates = {{"default",
                           "{% for m in messages %}{% for p in m.content %}{{ p.text }};"
                           "{% endfor %}{% endfor %}"}}});
  Json body = {{"messages",
                {{{"role", "user"},
                  {"content",
                   {{{"type", "text"}, {"text", "one"}}, {{"type", "text"}, {"text", "two"}}}}}}}};
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "one;two;");
  body["messages"] = Json::array({Ask("one")});
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "one;");
  body["continue_final_message"] = true;
  body["messages"].push_back({{"role", "assistant"}, {"content", "so far "}});
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "one;so far ");
  body["messages"].back()["content"] = Json::array({{{"type", "text"}, {"text", "so far"}}});
  EXPECT_EQ(server.Call("/apply-template", body)["prompt"], "one;so far");
  for (const Json& empty : {Json::array(), Json::array({{{"type", "text"}, {"text", ""}}})}) {
    body["messages"].back()["content"] = empty;
    EXPECT_EQ(server.Call("/apply-template", body, 400)["error"]["param"],
              "continue_final_message");
  }
}

}  // namespace
}  // namespace millrace::serve
