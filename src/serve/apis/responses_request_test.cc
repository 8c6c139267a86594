// Requests of OpenAI's Responses API as chat requests.
#include "serve/apis/responses_request.h"

#include <gtest/gtest.h>

#include <string>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

Parsed<ResponsesRequest> ReadResponses(const std::string& body, const ResponsesContext& context) {
  return ReadResponsesRequest(Json::parse(body), body, context);
}

TEST(Responses, AreChatRequests) {
  const auto parsed = ReadResponses(R"({
      "model": "m", "instructions": "be brief", "max_output_tokens": 5, "store": true,
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"b": 1, "a": 2}}},
      "reasoning": {"effort": "low"}, "include": ["x"],
      "tool_choice": {"type": "function", "name": "f"},
      "tools": [{"type": "function", "name": "f", "strict": true, "parameters": {}}],
      "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"}]})",
                                    {.id = "resp_7", .seed = 9});
  ASSERT_TRUE(std::holds_alternative<ResponsesRequest>(parsed));
  const TranslatedRequest& made = std::get<ResponsesRequest>(parsed).made;
  EXPECT_EQ(made.ignored, "include.x");
  EXPECT_EQ(Json(made.chat), Json::parse(R"({
      "model": "m", "request_id": "7", "seed": 9, "max_tokens": 5, "reasoning_effort": "low",
      "response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"b": 1, "a": 2}}},
      "tool_choice": {"type": "function", "function": {"name": "f"}},
      "tools": [{"type": "function",
        "function": {"name": "f", "strict": true, "parameters": {}}}],
      "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
          "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"}]})"));
}

Json ResponsesChat(const std::string& rest) {
  const auto parsed = ReadResponses("{" + rest + "}", {.id = "resp_1"});
  if (const auto* error = std::get_if<ApiError>(&parsed)) return {{"error", error->message}};
  const TranslatedRequest& made = std::get<ResponsesRequest>(parsed).made;
  Json chat(made.chat);
  chat["ignored"] = made.ignored;
  return chat;
}

TEST(Responses, ReasoningBelongsToTheTurnThatFollows) {
  const auto messages = [](const std::string& items) {
    return ResponsesChat(R"("input": [{"role": "user", "content": "q"}, )" + items +
                         "]")["messages"];
  };
  const std::string reasoning =
      R"({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
          "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": null})";
  Json made = messages(reasoning + R"(, {"type": "message", "role": "assistant", "content": "a"})");
  EXPECT_EQ(made[1], Json({{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "t"}}));
  made = messages(reasoning + R"(, {"type": "function_call", "call_id": "c", "name": "f",
                                   "arguments": "{}"})");
  EXPECT_EQ(made[1]["reasoning_content"], "t");
  EXPECT_EQ(made[1]["tool_calls"].size(), 1u);
  // A summary stands for a text that is missing, and a turn may have reasoning only.
  made = messages(R"({"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                     {"role": "user", "content": "?"})");
  EXPECT_EQ(made[1], Json({{"role", "assistant"}, {"content", ""}, {"reasoning_content", "s"}}));
  EXPECT_EQ(made[2]["content"], "?");
  EXPECT_EQ(messages(reasoning).back()["reasoning_content"], "t");
  EXPECT_EQ(messages(R"({"type": "reasoning", "summary": []})").size(), 1u);
}

TEST(Responses, ErrorsNameTheFieldsOfTheClient) {
  TestServer server(Reciting("x"));
  const auto error = [&](const Json& more) {
    Json body = {{"input", "x"}};
    body.update(more);
    const Json refused = server.Call("/v1/responses", body, 400)["error"];
    return std::pair(refused["param"].get<std::string>(), refused["message"].get<std::string>());
  };
  using Pair = std::pair<std::string, std::string>;
  const Json schema = {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "what"}}}};
  EXPECT_EQ(error({{"text", {{"format", schema}}}}).first, "text.format.schema");
  EXPECT_EQ(error({{"text", {{"format", {{"type", "xml"}}}}}}),
            Pair("text.format",
                 "text.format.type must be text, json_object, json_schema or "
                 "structural_tag, got \"xml\""));
  EXPECT_EQ(error({{"max_output_tokens", 5000}}).second.find("This model's maximum"), 0u);
  EXPECT_EQ(error({{"max_output_tokens", 0}}).first, "max_output_tokens");
  EXPECT_EQ(
      error({{"input",
              {{{"role", "user"}, {"content", "a"}}, {{"role", "robot"}, {"content", "b"}}}}}),
      Pair("input",
           "input[1].role must be one of developer, system, user, assistant, tool, "
           "function, got \"robot\""));
  EXPECT_EQ(error({{"input", {{{"type", "computer_call"}}}}}),
            Pair("input",
                 "input[0].type must be message, function_call, function_call_output or "
                 "reasoning, got \"computer_call\""));
  EXPECT_EQ(error({{"input", Json::array()}}),
            Pair("input", "input must be a string or a list of at least one item, got []"));
  EXPECT_EQ(error({{"tools", {{{"type", "mcp"}}, {{"type", "function"}, {"name", "a b"}}}}})
                .second.find("tools[1].name must be 1 to 128"),
            0u);
  EXPECT_EQ(error({{"tools", {{{"type", "function"}, {"name", 5}}}}}),
            Pair("tools", "tools[0].name must be a string, got 5"));
  EXPECT_EQ(error({{"input", {{{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}}}}}),
            Pair("input", "input[0].arguments must be a string, got null"));
  EXPECT_EQ(error({{"reasoning", {{"effort", 5}}}}),
            Pair("reasoning.effort", "reasoning.effort must be a string, got 5"));
}

TEST(Responses, UnknownFieldsInsideOthersAreNamed) {
  const Json chat = ResponsesChat(R"("metadata": {"a": "b"},
      "input": [{"role": "user", "mood": "sad", "content": [
        {"type": "input_text", "text": "a", "lang": "en"},
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]}],
      "text": {"verbosity": "low", "format": {"type": "text"}, "x": 1},
      "reasoning": {"effort": "low", "summary": "auto"}, "stream_options": {"y": 1})");
  EXPECT_EQ(chat["ignored"],
            "input[0].content[0].lang, input[0].mood, reasoning.summary, stream_options.y, "
            "text.verbosity, text.x");
}

TEST(Responses, ToolsOfTheProviderAreNamed) {
  const Json chat = ResponsesChat(R"("input": "x", "tool_choice": {"type": "web_search_preview"},
      "tools": [{"type": "web_search_preview"}, {"type": "function", "name": "f", "kind": "k"},
                {"type": "mcp", "server_label": "s"}, {"type": "custom", "name": "c"}])");
  EXPECT_EQ(chat["tools"].size(), 1u);
  EXPECT_EQ(
      chat["ignored"],
      "tool_choice, tools[0].web_search_preview, tools[1].kind, tools[2].mcp, tools[3].custom");
  const Json some = ResponsesChat(R"("input": "x", "tools": [{"type": "function", "name": "f"},
      {"type": "function", "name": "g"}], "tool_choice": {"type": "allowed_tools",
      "mode": "required", "tools": [{"type": "function", "name": "g"}]})");
  EXPECT_EQ(some["tools"].size(), 1u);
  EXPECT_EQ(some["tools"][0]["function"]["name"], "g");
  EXPECT_EQ(some["tool_choice"], "required");
}

TEST(Responses, AllowedToolsAreAmongTheTools) {
  const auto parsed = ReadResponses(R"({"input": "x", "tools": [{"type": "function", "name": "f"}],
      "tool_choice": {"type": "allowed_tools", "mode": "auto",
                      "tools": [{"type": "function", "name": "g"}]}})",
                                    {.id = "resp_1"});
  const auto* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->message, "tool_choice.tools[0].name must be one of the tools, got \"g\"");
}

}  // namespace
}  // namespace millrace::serve
