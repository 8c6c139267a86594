// Anthropic's Messages API: the same answers as those of the chat route.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/apis/messages_api.h"
#include "serve/apis/messages_writer.h"
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
  return Json(std::get<TranslatedRequest>(parsed).chat);
}

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
      "thinking": {"type": "enabled", "budget_tokens": 4},
      "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
          {"type": "tool_use", "id": "c1", "name": "f", "input": {"z": 1, "a": 2}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "r"}]},
          {"type": "text", "text": "and?"}]}]})",
                                          {}));
  EXPECT_EQ(chat, Json::parse(R"({
      "model": "m", "max_tokens": 5, "stop": ["x"], "temperature": 0.5, "top_k": 3,
      "tools": [{"type": "function", "function":
        {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
      "tool_choice": "required", "parallel_tool_calls": false,
      "chat_template_kwargs": {"enable_thinking": true, "thinking": true},
      "thinking_token_budget": 4,
      "messages": [{"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "reasoning_content": "t", "tool_calls": [
          {"id": "c1", "type": "function", "function":
            {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}}]},
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

TEST(Messages, ACallThatIsCutOffHasNoInput) {
  TestServer server(Reciting(
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one STOP two\"}}</tool_call>"));
  Json body = MessagesBody();
  body["stop_sequences"] = {"STOP"};
  const Json answer = server.Call("/v1/messages", body);
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], "STOP");
  EXPECT_EQ(answer["content"][0]["type"], "tool_use");
  EXPECT_EQ(answer["content"][0]["input"], Json::object());
}

std::string MessagesError(const std::string& body) {
  const Json chat = ChatOf(ChatOfMessages(body, {}));
  return chat.contains("error") ? chat["error"].get<std::string>() : "no error";
}

std::string MessagesIgnored(const std::string& body, const MessagesContext& context = {}) {
  const auto parsed = ChatOfMessages(body, context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error->message;
  return std::get<TranslatedRequest>(parsed).ignored;
}

TEST(Messages, Thinking) {
  const auto chat = [](const std::string& thinking, bool reasons = true) {
    return ChatOf(
        ChatOfMessages(R"({"max_tokens": 50, "messages": [{"role": "user", "content": "x"}],
                                     "thinking": )" +
                           thinking + "}",
                       {.reasons = reasons}));
  };
  const Json on = {{"enable_thinking", true}, {"thinking", true}};
  const Json off = {{"enable_thinking", false}, {"thinking", false}};
  EXPECT_EQ(chat(R"({"type": "adaptive"})")["chat_template_kwargs"], on);
  EXPECT_EQ(chat(R"({"type": "enabled"})")["chat_template_kwargs"], on);
  EXPECT_EQ(chat(R"({"type": "disabled"})")["chat_template_kwargs"], off);
  EXPECT_EQ(chat(R"({"type": "enabled", "budget_tokens": 9})")["thinking_token_budget"], 9);
  EXPECT_FALSE(
      chat(R"({"type": "enabled", "budget_tokens": 9})", false).contains("thinking_token_budget"));
  EXPECT_EQ(chat(R"({"type": "enabled", "display": "omitted"})")["include_reasoning"], false);
  EXPECT_EQ(chat(R"({"type": "auto"})")["error"],
            "thinking.type must be enabled, disabled or adaptive, got \"auto\"");
  EXPECT_EQ(chat("{}")["error"], "thinking.type must be enabled, disabled or adaptive, got null");
  EXPECT_EQ(chat("true")["error"], "thinking must be an object, got true");
  EXPECT_EQ(chat(R"({"type": "enabled", "budget_tokens": 50})")["error"],
            "thinking.budget_tokens must be less than max_tokens (50), got 50");
  EXPECT_EQ(chat(R"({"type": "enabled", "budget_tokens": "9"})")["error"],
            "thinking.budget_tokens must be an integer of at least 1 (and below 2^31), got \"9\"");
  EXPECT_EQ(chat(R"({"type": "enabled", "display": "all"})")["error"],
            "thinking.display must be summarized or omitted, got \"all\"");
}

TEST(Messages, ThinkingIsNamedIfTheModelDoesNotReason) {
  TestServer server;
  const auto ignored = [&](const Json& thinking) {
    const Json body = {{"max_tokens", 50},
                       {"messages", {{{"role", "user"}, {"content", "x"}}}},
                       {"thinking", thinking}};
    auto reply = server.Post("/v1/messages", body);
    EXPECT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 200) << reply->body();
    auto counted = server.Post("/v1/messages/count_tokens", body);
    EXPECT_EQ(counted->Header("x-millrace-ignored"), reply->Header("x-millrace-ignored"));
    return reply->Header("x-millrace-ignored");
  };
  EXPECT_EQ(ignored({{"type", "enabled"}, {"budget_tokens", 9}}), "thinking");
  EXPECT_EQ(ignored({{"type", "adaptive"}}), "thinking");
  EXPECT_EQ(ignored({{"type", "disabled"}}), "");
  TestServer reasoning(Reciting("<think>hm</think>yes"));
  Json body = {{"max_tokens", 50},
               {"messages", {{{"role", "user"}, {"content", "x"}}}},
               {"thinking", {{"type", "adaptive"}}}};
  auto reply = reasoning.Post("/v1/messages", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "");
}

TEST(Messages, AnAnswerThatWasBegunIsContinued) {
  const auto chat = [](const std::string& last) {
    return ChatOf(ChatOfMessages(
        R"({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}, )" + last + "]}", {}));
  };
  for (const char* content : {R"("Once")", R"([{"type": "text", "text": "Once"}])"}) {
    const Json made = chat(std::string(R"({"role": "assistant", "content": )") + content + "}");
    EXPECT_EQ(made["continue_final_message"], true);
    EXPECT_EQ(made["messages"][1]["content"], "Once");
  }
  // Nothing to continue: the answer begins.
  for (const char* content : {R"("")", "[]", R"([{"type": "text", "text": ""}])"}) {
    const Json made = chat(std::string(R"({"role": "assistant", "content": )") + content + "}");
    EXPECT_EQ(made["messages"].size(), 1u) << made;
    EXPECT_FALSE(made.contains("continue_final_message"));
  }
  EXPECT_EQ(chat(R"({"role": "assistant", "content": "Once "})")["error"],
            "messages[1].content must not end with white space, because it is the last message and "
            "the answer goes on where it ends; got \"Once \"");
  EXPECT_EQ(
      chat(R"({"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]})")["error"],
      "messages[1].content must have a text, because it is the last message and the answer "
      "goes on where it ends");
  const Json called = chat(
      R"({"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {}}]})");
  EXPECT_FALSE(called.contains("continue_final_message"));

  TestServer server(Reciting("hello"));
  Json body = {
      {"max_tokens", 50},
      {"messages",
       {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", "Once"}}}}};
  EXPECT_EQ(server.Call("/v1/messages", body)["content"][0]["text"], "hello");
  const Json prompt = server.Call("/v1/messages/count_tokens", body)["input_tokens"];
  body["continue_final_message"] = true;
  EXPECT_EQ(prompt, server.Call("/tokenize", body)["count"]);
}

TEST(Messages, AFormatConstrains) {
  const std::string format = R"({"type": "json_schema", "schema": {"b": 1, "a": 2}})";
  for (const std::string& given :
       {R"("output_config": {"format": )" + format + "}", R"("output_format": )" + format}) {
    const auto made = ChatOfMessages(
        R"({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], )" + given + "}", {});
    const std::string chat = std::get<TranslatedRequest>(made).chat.dump();
    EXPECT_NE(
        chat.find(R"("type":"json_schema","json_schema":{"name":"output","schema":{"b":1,"a":2}})"),
        std::string::npos)
        << chat;
    EXPECT_EQ(std::get<TranslatedRequest>(made).ignored, "");
  }
  const auto refused = [](const std::string& config) {
    return MessagesError(R"({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
                             "output_config": )" +
                         config + "}");
  };
  EXPECT_EQ(refused(R"({"format": {"type": "json"}})"),
            "output_config.format.type must be json_schema, got \"json\"");
  EXPECT_EQ(refused(R"({"format": {"type": "json_schema"}})"),
            "output_config.format.schema is required");
  EXPECT_EQ(refused(R"({"effort": "huge"})"),
            "output_config.effort must be one of low, medium, high, xhigh, max, got \"huge\"");
}

TEST(Messages, BlocksBelongToOneRole) {
  TestServer server;
  const auto refusal = [&](const char* role, const Json& block) {
    const Json body = {{"max_tokens", 5},
                       {"messages",
                        {{{"role", "user"}, {"content", "q"}},
                         {{"role", role}, {"content", Json::array({block})}}}}};
    return server.Call("/v1/messages", body, 400)["error"]["message"].get<std::string>();
  };
  const std::string of_assistant = "may be in a message of the assistant only";
  for (const Json& block : {Json{{"type", "thinking"}, {"thinking", "t"}},
                            Json{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}}}) {
    const std::string message = refusal("user", block);
    EXPECT_EQ(message.find("messages[1].content[0].type " + of_assistant), 0u) << message;
  }
  const std::string message = refusal("assistant", {{"type", "tool_result"}, {"tool_use_id", "c"}});
  EXPECT_NE(message.find("of the user only, got \"tool_result\""), std::string::npos) << message;
}

// One part may have the rest of a call and the text that follows it.
TEST(Messages, AnOpenCallGoesOnBeforeTheText) {
  MessagesWriter writer;
  writer.SetHead({.id = "chatcmpl-1", .model = "m"});
  ChoicePart begin, rest;
  begin.calls = {{.index = 0, .id = "c", .name = "f", .arguments = "{\"a\""}};
  rest.calls = {{.index = 0, .id = "", .name = "", .arguments = ": 1}"}};
  rest.text = "text";
  std::string body = writer.Part(begin, {});
  body += writer.Part(rest, {});
  EXPECT_LT(body.find(": 1}"), body.find("\"text\":\"text\"")) << body;
  EXPECT_EQ(body.find("\"index\":2"), std::string::npos) << "a call and a text: " << body;
}

// It is kept as the chunks of a chat, and has the same bytes as one that is not kept.
TEST(Messages, AStreamThatIsKeptHasTheSameEvents) {
  const auto answer = [](bool kept) {
    TestServerOptions options = Reciting(kAnswer);
    options.service.resumable.enabled = kept;
    TestServer server(std::move(options));
    Json body = MessagesBody();
    body["stream"] = true;
    body["mood"] = "sad";
    auto first = server.Post("/v1/messages", body);
    EXPECT_TRUE(first->WaitDone());
    EXPECT_EQ(first->Header("x-millrace-ignored"), "mood");
    std::string made;
    for (const TypedEvent& event : TypedEvents(first->body())) {
      if (!event.data.contains("delta")) continue;
      for (const char* name : {"thinking", "text", "partial_json", "stop_reason"}) {
        const Json value = event.data["delta"].value(name, Json());
        if (value.is_string()) made += value.get<std::string>();
      }
    }
    if (!kept) return made;
    const std::string position = first->Header("x-stream-id") + ":0";
    auto again =
        server.Start("POST", "/v1/messages", DumpJson(body), {{"Last-Event-ID", position}});
    EXPECT_TRUE(again->WaitDone());
    EXPECT_EQ(again->body(), first->body());
    return made;
  };
  EXPECT_EQ(answer(true), answer(false));
}

TEST(Messages, ATurnOfWhichNothingCanBeReadStays) {
  const Json chat = ChatOf(ChatOfMessages(R"({"max_tokens": 5, "messages": [
      {"role": "user", "content": "x"},
      {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "d"}]},
      {"role": "user", "content": [{"type": "text", "text": ""},
                                   {"type": "text", "text": "y"}]}]})",
                                          {}));
  EXPECT_EQ(chat["messages"][1], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(chat["messages"][2]["content"], "y");
}

// Errors of the chat request name the fields of this one.
TEST(Messages, ErrorsNameTheFieldsOfTheClient) {
  TestServer server(Reciting("x"));
  const auto error = [&](const Json& more) {
    Json body = {{"max_tokens", 50}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
    body.update(more);
    return server.Call("/v1/messages", body, 400)["error"]["message"].get<std::string>();
  };
  const Json schema = {{"type", "json_schema"}, {"schema", {{"type", "what"}}}};
  EXPECT_TRUE(error({{"output_config", {{"format", schema}}}})
                  .starts_with("output_config.format.schema cannot be used"));
  EXPECT_EQ(error({{"stop_sequences", {"a", ""}}}),
            "stop_sequences[1] must have 1 to 1024 bytes, got 0");
  EXPECT_EQ(error({{"stop_sequences", 5}}),
            "stop_sequences must be a string or an array of strings, got 5");
  EXPECT_EQ(error({{"tools",
                    {{{"type", "web_search_20250305"}, {"name", "web_search"}},
                     {{"name", "f g"}, {"input_schema", Json::object()}}}}}),
            "tools[1].name must be 1 to 128 letters, digits and characters of _-.:/, got \"f g\"");
  EXPECT_EQ(error({{"tools", {{{"name", "f"}, {"input_schema", "no"}}}}}),
            "tools[0].input_schema must be a JSON schema, got \"no\"");
  EXPECT_EQ(error({{"tools", {{{"name", "f"}}}}}), "tools[0].input_schema is required");
  EXPECT_EQ(error({{"tools", {{{"name", 5}, {"input_schema", Json::object()}}}}}),
            "tools[0].name must be a string, got 5");
  EXPECT_EQ(error({{"tools", {{{"name", "f"}, {"input_schema", Json::object()}, {"strict", 1}}}}}),
            "tools[0].strict must be true or false, got 1");
  EXPECT_EQ(error({{"tool_choice", {{"type", "one"}}}}),
            "tool_choice.type must be auto, any, tool or none, got \"one\"");
  const auto content = [&](const Json& blocks) {
    return error({{"messages", {{{"role", "user"}, {"content", blocks}}}}});
  };
  EXPECT_EQ(content({{{"type", "text"}, {"text", ""}}}),
            "messages[0].content[0].text must not be empty, got \"\"");
  EXPECT_EQ(content(Json::array()),
            "messages[0].content must be a string or a list of at least one block, got []");
  EXPECT_EQ(content({{{"type", "text"}, {"text", 5}}}),
            "messages[0].content[0].text must be a string, got 5");
  EXPECT_EQ(content({{{"type", "image"}}}),
            "messages[0].content[0].type must be text, tool_use, tool_result, thinking or "
            "redacted_thinking, got \"image\"");
  EXPECT_EQ(error({{"messages", {{{"role", "robot"}, {"content", "x"}}}}}),
            "messages[0].role must be \"user\" or \"assistant\", got \"robot\"");
  EXPECT_EQ(error({{"system", {{{"type", "text"}, {"text", "a"}}, {{"type", "image"}}}}}),
            "system[1] must be text, or blocks of the type text, got {\"type\": \"image\"}");
}

TEST(Messages, UnknownFieldsInsideOthersAreNamed) {
  EXPECT_EQ(MessagesIgnored(R"({
      "max_tokens": 5,
      "system": [{"type": "text", "text": "s", "cache_control": {"type": "e"}, "x": 1}],
      "thinking": {"type": "disabled", "y": 1}, "output_config": {"z": 1},
      "tools": [{"name": "f", "input_schema": {"any": 1}, "kind": "k",
                 "cache_control": {"type": "e"}},
                {"type": "web_search_20250305", "name": "web_search"}],
      "tool_choice": {"type": "auto", "w": 1},
      "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": null}]},
        {"role": "assistant", "id": "i", "content": [
          {"type": "tool_use", "id": "c", "name": "f", "input": {"own": 1}, "v": 1}]},
        {"role": "user", "mood": "sad", "content": [
          {"type": "tool_result", "tool_use_id": "c", "is_error": true, "content": "no"}]}]})"),
            "messages[1].content[0].v, messages[2].content[0].is_error, messages[2].mood, "
            "output_config.z, system[0].x, thinking.y, tool_choice.w, "
            "tools[0].kind, tools[1].web_search_20250305");
}

// max_tokens beyond the context is lowered here. Elsewhere that is an option of the server.
TEST(Messages, LengthsBeyondTheContextAreLowered) {
  TestServer server;
  Json body = {{"max_tokens", 32000}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  EXPECT_EQ(server.Call("/v1/messages", body)["stop_reason"], "max_tokens");
  server.Call("/v1/chat/completions", body, 400);
  body["messages"][0]["content"] = std::string(300, 'x');
  const Json error = server.Call("/v1/messages", body, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("leaves no room"), std::string::npos) << error;
}

TEST(Messages, AStreamBeginsWithTheNumberOfInputTokens) {
  TestServer server(Reciting("hello"));
  const Json body = {{"max_tokens", 20}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  const auto events = EventsOf(server, "/v1/messages", body);
  ASSERT_FALSE(events.empty());
  const Json& usage = events.front().data["message"]["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(),
            server.Call("/v1/messages/count_tokens", body)["input_tokens"].get<int>());
}

TEST(Messages, ASilentStreamSendsPings) {
  TestServerOptions options = Reciting("hello");
  options.service.ping_after = Duration::Millis(20);
  TestServer server(std::move(options));
  server.gate.Close();
  Json body = {{"max_tokens", 20}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  body["stream"] = true;
  auto reply = server.Post("/v1/messages", body);
  ASSERT_TRUE(reply->WaitWrites(2));
  // No event comes before message_start: clients refuse that.
  EXPECT_TRUE(reply->body().starts_with(": ping")) << reply->body();
  EXPECT_EQ(reply->body().find("event:"), std::string::npos);
  server.gate.Open();
  ASSERT_TRUE(reply->WaitDone());
}

}  // namespace
}  // namespace millrace::serve
