// Ids of tool calls: those of answers, and those of earlier turns in a prompt.
#include "serve/request/call_ids.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using text::CallIds;

Json CallOf(const char* id, const char* name) {
  Json call = {{"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}};
  if (id != nullptr) call["id"] = id;
  return call;
}

// A vector, because compilers differ on what a Json of one Json in braces is.
Json Calls(const std::vector<Json>& calls) {
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}};
}

Json ResultOf(const char* id) {
  Json result = {{"role", "tool"}, {"content", "r"}};
  if (id != nullptr) result["tool_call_id"] = id;
  return result;
}

// The ids in the order in which they occur.
std::vector<std::string> IdsOf(const Json& messages) {
  std::vector<std::string> ids;
  for (const Json& message : messages) {
    for (const Json& call : message.value("tool_calls", Json::array())) {
      ids.push_back(call.value("id", "none"));
    }
    if (message["role"] == Json("tool")) ids.push_back(message.value("tool_call_id", "none"));
  }
  return ids;
}

std::vector<std::string> IdsAfter(CallIds ids, const Json& messages) {
  return IdsOf(Json::parse(WithCallIds(messages.dump(), ids).messages));
}

bool IsNine(const std::string& id) {
  return id.size() == 9 && std::ranges::all_of(id, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0;
         });
}

TEST(CallIds, ThoseOfOtherServersGetNineLettersAndDigits) {
  const Json messages = {
      Calls({CallOf("call_1", "f"), CallOf("toolu_01A", "g"), CallOf("aB3456789", "f")}),
      ResultOf("toolu_01A"), ResultOf("call_1"), ResultOf("aB3456789"), ResultOf("lost")};
  const auto ids = IdsAfter(CallIds::kNineChars, messages);
  for (const std::string& id : ids) EXPECT_TRUE(IsNine(id)) << id;
  EXPECT_EQ(ids[3], ids[1]);
  EXPECT_EQ(ids[4], ids[0]);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(ids[2], "aB3456789");
  EXPECT_EQ(ids[5], "aB3456789");
  EXPECT_EQ(ids, IdsAfter(CallIds::kNineChars, messages)) << "the same in each turn";
}

TEST(CallIds, NumbersCountTheConversation) {
  const Json messages = {Calls({CallOf("call_a", "f"), CallOf("call_b", "g")}),
                         ResultOf("call_b"),
                         ResultOf("call_a"),
                         Calls({CallOf("functions.f:2", "f")}),
                         ResultOf("functions.f:2"),
                         Calls({CallOf("call_a", "f")}),
                         ResultOf("call_a")};
  EXPECT_EQ(IdsAfter(CallIds::kNumbered, messages),
            (std::vector<std::string>{"functions.f:0", "functions.g:1", "functions.g:1",
                                      "functions.f:0", "functions.f:2", "functions.f:2",
                                      "functions.f:3", "functions.f:3"}));
  EXPECT_EQ(WithCallIds(messages.dump(), CallIds::kNumbered).calls, 4);
}

TEST(CallIds, NumbersOfAConversationWhoseBeginningIsCutOffStay) {
  const Json messages = {Calls({CallOf("functions.f:7", "f")}), ResultOf("functions.f:7"),
                         Calls({CallOf("functions.f:7", "f")}), ResultOf("functions.f:7")};
  EXPECT_EQ(IdsAfter(CallIds::kNumbered, messages),
            (std::vector<std::string>{"functions.f:7", "functions.f:7", "functions.f:8",
                                      "functions.f:8"}));
  EXPECT_EQ(WithCallIds(messages.dump(), CallIds::kNumbered).calls, 9);
}

TEST(CallIds, ResultsWithoutIdsAreThoseOfTheCallsInOrder) {
  Json named = ResultOf(nullptr);
  named["tool_name"] = "g";
  const Json messages = {Calls({CallOf(nullptr, "f"), CallOf(nullptr, "g")}), named,
                         ResultOf(nullptr)};
  EXPECT_EQ(IdsAfter(CallIds::kNumbered, messages),
            (std::vector<std::string>{"functions.f:0", "functions.g:1", "functions.g:1",
                                      "functions.f:0"}));
  const auto nine = IdsAfter(CallIds::kNineChars, messages);
  EXPECT_TRUE(IsNine(nine[0]));
  EXPECT_EQ(nine[0], nine[3]);
  EXPECT_EQ(nine[1], nine[2]);
}

TEST(CallIds, FamiliesWithoutAFormKeepTheClients) {
  const Json messages = {Calls({CallOf("x", "f"), CallOf(nullptr, "f")}), ResultOf("x")};
  EXPECT_EQ(WithCallIds(messages.dump(), CallIds::kAny).messages, messages.dump());
}

TEST(CallIds, OddMessagesDoNoHarm) {
  for (const char* text :
       {R"([{"role": "tool", "content": ""}])", R"([{"role": "assistant", "tool_calls": []}])",
        R"([{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": 7}}]},
        {"role": "tool",
            "tool_call_id": 5, "content": ""}])",
        R"([{"role": "assistant", "tool_calls": [{"id": "functions.f:99999999999",
            "function": {"name": "f"}}]}])"}) {
    for (const CallIds ids : {CallIds::kNineChars, CallIds::kNumbered}) {
      EXPECT_EQ(Json::parse(WithCallIds(text, ids).messages).size(), Json::parse(text).size());
    }
  }
  // Half a million calls and results take no quadratic time.
  std::vector<Json> calls;
  Json messages = Json::array();
  for (int i = 0; i < 20'000; ++i) calls.push_back(CallOf("same", "f"));
  messages.push_back(Calls(calls));
  for (int i = 0; i < 20'000; ++i) messages.push_back(ResultOf("same"));
  const auto ids = IdsAfter(CallIds::kNumbered, messages);
  EXPECT_EQ(ids[19'999], "functions.f:19999");
  EXPECT_EQ(ids.back(), "functions.f:19999");
}

TEST(CallIds, OfNewCalls) {
  std::set<std::string> all;
  for (int choice = 0; choice < 4; ++choice) {
    for (int number = 0; number < 100; ++number) {
      const std::string id = NewCallId(CallIds::kNineChars, "chatcmpl-1", choice, number, "f");
      EXPECT_TRUE(IsNine(id)) << id;
      EXPECT_TRUE(all.insert(id).second);
    }
  }
  EXPECT_EQ(NewCallId(CallIds::kNumbered, "chatcmpl-1", 2, 5, "a.b"), "functions.a.b:5");
  EXPECT_EQ(NewCallId(CallIds::kAny, "chatcmpl-1", 0, 0, "f").size(), 29u);
}

constexpr char kKimiCalls[] =
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"
    "{\"q\": 1}<|tool_call_end|><|tool_call_begin|>functions.put:1<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>";

Json ToolBody(Json messages) {
  return {{"messages", std::move(messages)},
          {"max_tokens", 400},
          {"tools", {{{"type", "function"}, {"function", {{"name", "get"}}}}}}};
}

TEST(CallIds, OfAKimiAnswerGoOnWithTheConversation) {
  TestServerOptions options = Reciting(kKimiCalls);
  options.tool_format = "kimi_k2";
  TestServer server(options);
  const Json user = {{"role", "user"}, {"content", "x"}};
  const auto ids = [&](Json messages) {
    const Json answer = server.Call("/v1/chat/completions", ToolBody(std::move(messages)));
    return IdsOf(Json::array({answer["choices"][0]["message"]}));
  };
  EXPECT_EQ(ids(Json::array({user})),
            (std::vector<std::string>{"functions.get:0", "functions.put:1"}));
  EXPECT_EQ(ids(Json::array({user, Calls({CallOf("call_1", "get")}), ResultOf("call_1")})),
            (std::vector<std::string>{"functions.get:1", "functions.put:2"}));
}

// As the templates of the family check the ids.
constexpr char kNineTemplate[] =
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}{% endfor %}"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id is not defined or m.tool_call_id|length != 9 %}"
    "{{ raise_exception('id') }}{% endif %}[TOOL_RESULTS]{{ m.tool_call_id }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}";

TEST(CallIds, OfMistralRenderInTheNextTurn) {
  TestServerOptions options = Reciting("[TOOL_CALLS]get[ARGS]{}");
  options.tool_format = "mistral";
  options.chat_template = kNineTemplate;
  TestServer server(options);
  const Json user = {{"role", "user"}, {"content", "x"}};
  const Json message =
      server.Call("/v1/chat/completions", ToolBody(Json::array({user})))["choices"][0]["message"];
  const std::string id = message["tool_calls"][0]["id"];
  EXPECT_TRUE(IsNine(id)) << id;
  const Json next = {user, message, ResultOf(id.c_str())};
  EXPECT_EQ(server.Call("/apply-template", {{"messages", next}})["prompt"],
            "x[TOOL_CALLS]get[CALL_ID]" + id + "[TOOL_RESULTS]" + id);
  // Turns of other servers and other APIs, too.
  server.Call("/v1/chat/completions",
              ToolBody({user, Calls({CallOf("call_123", "get")}), ResultOf("call_123")}));
  server.Call("/v1/messages",
              Json::parse(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1",
        "name": "get", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
        "content": "r"}]}]})"));
  server.Call("/v1/responses", Json::parse(R"({"input": [{"role": "user", "content": "x"},
                {"type": "function_call", "call_id": "fc_1", "name": "get", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "fc_1", "output": "r"}]})"));
  server.Call("/api/chat",
              Json::parse(R"({"stream": false, "messages": [{"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get",
        "arguments": {}}}]},
                {"role": "tool", "tool_name": "get", "content": "r"}]})"));
}

TEST(CallIds, ATemplateThatDemandsThemOverrulesTheParser) {
  TestServerOptions options =
      Reciting("<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>");
  options.chat_template = kNineTemplate;
  TestServer server(options);
  const Json message =
      server.Call("/v1/chat/completions",
                  ToolBody({{{"role", "user"}, {"content", "x"}}}))["choices"][0]["message"];
  EXPECT_TRUE(IsNine(message["tool_calls"][0]["id"]));
}

}  // namespace
}  // namespace millrace::serve
