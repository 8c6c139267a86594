// Tool calls and reasoning in answers: whole, streamed, and what a request may ask for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "serve/generation/tool_use.h"
#include "serve/testing/fixtures.h"
#include "text/token_table.h"
#include "text/tool_grammar.h"

namespace millrace::serve {
namespace {

const Json kTools = Json::parse(R"([
  {"type": "function", "function": {"name": "f", "parameters":
    {"type": "object", "properties": {"s": {"enum": ["a", "b"]}}, "required": ["s"],
     "additionalProperties": false}}},
  {"type": "function", "function": {"name": "g", "parameters":
    {"type": "object", "properties": {}, "additionalProperties": false}}}])");

Json ToolsBody() {
  return {
      {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", kTools}, {"max_tokens", 200}};
}

constexpr char kTwoCalls[] =
    "<think>hm</think>Sure.<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}</tool_call>"
    "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";

TEST(Tools, CallsAndReasoningOfAWholeAnswer) {
  TestServer server(Reciting(kTwoCalls));
  const Json choice = server.Call("/v1/chat/completions", ToolsBody())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"], "Sure.");
  EXPECT_EQ(message["reasoning_content"], "hm");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "f");
  EXPECT_EQ(call["function"]["arguments"], "{\"s\": \"a\"}");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
}

TEST(Tools, DeltasOfAStreamAreTheWholeAnswer) {
  TestServer server(Reciting(kTwoCalls));
  Json body = ToolsBody();
  body["stream_options"] = {{"include_usage", true}};
  std::string content, reasoning, finish;
  std::vector<Json> calls;
  Json usage;
  for (const Json& event : server.Stream("/v1/chat/completions", body)) {
    if (event["choices"].empty()) {
      usage = event["usage"];
      continue;
    }
    const Json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    for (const Json& part : delta.value("tool_calls", Json::array())) {
      const auto index = part["index"].get<size_t>();
      if (index == calls.size()) {
        calls.push_back(part);
        continue;
      }
      ASSERT_LT(index, calls.size());
      EXPECT_FALSE(part.contains("id"));
      auto& arguments = calls[index]["function"]["arguments"];
      arguments = arguments.get<std::string>() + part["function"]["arguments"].get<std::string>();
    }
    if (event["choices"][0]["finish_reason"].is_string()) {
      finish = event["choices"][0]["finish_reason"];
    }
  }
  EXPECT_EQ(content, "Sure.");
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["function"]["name"], "f");
  EXPECT_EQ(calls[0]["function"]["arguments"], "{\"s\": \"a\"}");
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST(Tools, WithoutToolsTheMarksAreText) {
  TestServer server(Reciting("<tool_call>{}</tool_call>"));
  Json body = ToolsBody();
  body.erase("tools");
  const Json choice = server.Call("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "<tool_call>{}</tool_call>");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

TEST(Tools, ReasoningCanBeHidden) {
  TestServer server(Reciting("<think>hm</think>\n\nYes."));
  Json body = ToolsBody();
  body["include_reasoning"] = false;
  const Json message = server.Call("/v1/chat/completions", body)["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_EQ(message["content"], "Yes.");
}

TEST(Tools, OneCallIfParallelCallsAreRefused) {
  TestServer server(Reciting(kTwoCalls));
  Json body = ToolsBody();
  body["parallel_tool_calls"] = false;
  const Json message = server.Call("/v1/chat/completions", body)["choices"][0]["message"];
  EXPECT_EQ(message["tool_calls"].size(), 1u);
}

constexpr char kLongCall[] =
    "Sure.<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one STOP two\"}}</tool_call>";

// The choice of a whole answer; that of a stream is the same.
Json ChoiceOf(TestServer& server, const Json& body) {
  const Json choice = server.Call("/v1/chat/completions", body)["choices"][0];
  Json finish, stop;
  std::string content;
  Json calls = Json::array();
  for (const Json& event : server.Stream("/v1/chat/completions", body)) {
    const Json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    for (const Json& part : delta.value("tool_calls", Json::array())) {
      if (part["index"] == Json(calls.size())) {
        calls.push_back(part["function"]);
      } else {
        calls.back()["arguments"] = calls.back()["arguments"].get<std::string>() +
                                    part["function"]["arguments"].get<std::string>();
      }
    }
    if (event["choices"][0]["finish_reason"].is_null()) continue;
    finish = event["choices"][0]["finish_reason"];
    stop = event["choices"][0]["stop_reason"];
  }
  EXPECT_EQ(finish, choice["finish_reason"]);
  EXPECT_EQ(stop, choice["stop_reason"]);
  const Json& message = choice["message"];
  EXPECT_EQ(content, message["content"].is_null() ? "" : message["content"].get<std::string>());
  Json whole = Json::array();
  for (const Json& call : message.value("tool_calls", Json::array()))
    whole.push_back(call["function"]);
  EXPECT_EQ(calls, whole);
  return choice;
}

TEST(Tools, AStopStringInArgumentsEndsTheAnswerNotTheCall) {
  TestServer server(Reciting(kLongCall));
  Json body = ToolsBody();
  body["stop"] = {"STOP"};
  const Json choice = ChoiceOf(server, body);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "STOP");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"s\": \"one ");
  body["stop"] = {"</tool_call>"};
  EXPECT_EQ(ChoiceOf(server, body)["finish_reason"], "tool_calls") << "the call is whole";
  body["stop"] = {"\"name"};
  const Json early = ChoiceOf(server, body);
  EXPECT_EQ(early["finish_reason"], "stop");
  EXPECT_EQ(early["message"]["content"], "Sure.");
  EXPECT_FALSE(early["message"].contains("tool_calls"));
}

TEST(Tools, ACallIsCutAnywhere) {
  for (const auto& [format, script] : std::vector<std::pair<std::string, std::string>>{
           {"hermes", kLongCall},
           {"qwen3_coder",
            "Sure.<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</"
            "tool_call>"},
           {"mistral", "Sure.[TOOL_CALLS]f[ARGS]{\"s\": \"a\"}"},
           {"lfm2", "Sure.<|tool_call_start|>[f(s='a')]<|tool_call_end|>"}}) {
    TestServerOptions options = Reciting(script);
    options.tool_format = format;
    TestServer server(options);
    Json body = ToolsBody();
    for (size_t tokens = 30; tokens < script.size(); ++tokens) {
      body["max_tokens"] = tokens;
      const Json choice = server.Call("/v1/chat/completions", body)["choices"][0];
      ASSERT_EQ(choice["finish_reason"], "length") << format << " " << tokens;
      ASSERT_EQ(choice["message"]["content"], "Sure.") << format << " " << tokens;
    }
    body["max_tokens"] = script.size() + 1;
    EXPECT_EQ(ChoiceOf(server, body)["finish_reason"], "tool_calls") << format;
  }
}

TEST(Tools, ArgumentsThatAreNoJsonDoNotEndAsCalls) {
  TestServer server(
      Reciting("<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 'a'}}</tool_call>Done."));
  const Json choice = ChoiceOf(server, ToolsBody());
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], "Done.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"s\": 'a'}}");
}

TEST(Tools, ValuesHaveTheTypesOfTheSchema) {
  TestServerOptions options = Reciting(
      "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>n</arg_key>\n"
      "<arg_value>12345678901234567890123</arg_value>\n</tool_call>");
  options.tool_format = "glm45";
  TestServer server(options);
  Json body = ToolsBody();
  body["tools"] = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"s": {"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]},
       "n": {"type": ["integer", "null"]}}, "$defs": {"S": {"enum": ["1", "2"]}}}}}])");
  EXPECT_EQ(ChoiceOf(server, body)["message"]["tool_calls"][0]["function"]["arguments"],
            "{\"s\":\"1\",\"n\":12345678901234567890123}");
}

TEST(Tools, RequiredCallsWinOverAResponseFormat) {
  TestServer server(Reciting("x"));
  Json body = ToolsBody();
  body["tool_choice"] = "required";
  body["response_format"] = {{"type", "json_object"}};
  auto reply = server.Post("/v1/chat/completions", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 200) << reply->body();
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "response_format");
  // Other constraints are no wishes for the text of an answer.
  body.erase("response_format");
  body["guided_regex"] = "a+";
  EXPECT_EQ(server.Call("/v1/chat/completions", body, 400)["error"]["param"], "tool_choice");
}

TEST(Tools, ANameThatIsNoToolIsRefused) {
  TestServer server(Reciting("x"));
  Json body = ToolsBody();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "h"}}}};
  const Json error = server.Call("/v1/chat/completions", body, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("\"h\""), std::string::npos);
}

TEST(Tools, ASchemaThatCannotBeUsedIsRefused) {
  TestServer server(Reciting("x"));
  Json body = ToolsBody();
  body["tool_choice"] = "required";
  body["tools"][1]["function"]["parameters"]["properties"] = {{"a", {{"type", "what"}}}};
  const auto refusal = [&](const Json& choice) {
    body["tool_choice"] = choice;
    const Json error = server.Call("/v1/chat/completions", body, 400)["error"];
    EXPECT_EQ(error["param"], "tools");
    return error["message"].get<std::string>();
  };
  const std::string which = "tools[1].function.parameters cannot be used";
  EXPECT_EQ(refusal("required").find(which), 0u);
  EXPECT_EQ(refusal({{"type", "function"}, {"function", {{"name", "g"}}}}).find(which), 0u);
  body["tools"][1]["function"]["strict"] = true;
  EXPECT_EQ(refusal("auto").find(which), 0u);
}

TEST(Tools, ASchemaOfSomethingElseIsRefused) {
  TestServer server(Reciting("x"));
  Json body = ToolsBody();
  body["tool_choice"] = "required";
  body["tools"][1]["function"]["parameters"] = {{"type", "array"}};
  const Json error = server.Call("/v1/chat/completions", body, 400)["error"];
  EXPECT_EQ(error["message"],
            "tools[1].function.parameters.type must be \"object\", because arguments are one; got "
            "\"array\"");
}

// A schema may leave out that arguments are an object.
TEST(Tools, RequiredArgumentsAreAnObject) {
  for (const Json& schema : {Json{{"properties", {{"a", {{"enum", {1}}}}}}, {"required", {"a"}}},
                             Json{{"type", {"object", "null"}}, {"required", {"a"}}}}) {
    const text::OrderedJson tools = {
        {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}};
    const std::string grammar =
        text::CallGrammar(text::PlainJsonFormat(), tools, {.many = false, .first = 0},
                          [](auto) { return std::nullopt; });
    EXPECT_NE(grammar.find("\"type\":\"object\""), std::string::npos) << grammar;
    EXPECT_EQ(grammar.find("null"), std::string::npos) << grammar;
  }
}

TEST(Tools, ARequiredCallDoesNotGoWithABeamSearch) {
  TestServer server(Reciting("x"));
  Json body = ToolsBody();
  body.update({{"tool_choice", "required"}, {"use_beam_search", true}, {"temperature", 0}});
  body["best_of"] = 2;
  const Json error = server.Call("/v1/chat/completions", body, 400)["error"];
  EXPECT_EQ(error["param"], "use_beam_search");
  EXPECT_NE(error["message"].get<std::string>().find("tools"), std::string::npos);
}

TEST(Tools, ReasoningThatTheLastMessageOpensGoesOn) {
  TestServer server(Reciting("more</think>Yes."));
  const Json message = server.Call("/v1/chat/completions",
                                   {{"messages",
                                     {{{"role", "user"}, {"content", "x"}},
                                      {{"role", "assistant"}, {"content", "<think>some"}}}},
                                    {"continue_final_message", true}})["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "more");
  EXPECT_EQ(message["content"], "Yes.");
}

// What the grammars of each format let a model write, read by the parser of the format.
class RequiredCalls : public testing::Test {
 protected:
  RequiredCalls() {
    model_.tokenizer = TinyTokenizer();
    const std::vector<TokenId> ends = {kTinyEos};
    model_.grammars = text::Grammars::Of(text::TokenTableOf(*model_.tokenizer, ends).value());
  }

  // The text that follows from always taking the first allowed token.
  std::string Write(const std::string& grammar, uint64_t seed) {
    const auto matcher = (*model_.grammars)->MatcherOf(grammar);
    Rng rng(seed);
    std::vector<TokenId> output;
    for (int i = 0; i < 2000; ++i) {
      const auto allowed = matcher->Allowed(output);
      if (!allowed.ok()) {
        ADD_FAILURE() << allowed.status().message() << " in " << grammar;
        return "";
      }
      std::vector<TokenId> tokens;
      for (TokenId t = 0; t < model_.tokenizer->vocab_size(); ++t) {
        if ((*allowed)[static_cast<size_t>(t / 32)] >> (t % 32) & 1) tokens.push_back(t);
      }
      const TokenId token = tokens.at(static_cast<size_t>(rng.Between(0, std::ssize(tokens) - 1)));
      if (token == kTinyEos) break;
      output.push_back(token);
    }
    return model_.tokenizer->Decode(output, false);
  }

  ServedModel model_;
};

TEST_F(RequiredCalls, AreCallsOfTheToolsInEveryFormat) {
  for (const text::ToolFormat& format : text::ToolFormats()) {
    model_.tool_format = &format;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      ChatRequest request;
      request.tools.tools = kTools.dump();
      request.tools.choice = ToolUse::Choice::kRequired;
      if (seed % 3 == 0) request.tools.only = "f";
      request.tools.many = seed % 2 == 0;
      request.conversation.messages =
          R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "f"}}]}])";
      AnswerSplit split;
      const auto error = PrepareAnswer(model_, "", request, split);
      ASSERT_FALSE(error) << error->message;
      const std::string text = Write(request.options.params.grammar, seed);
      text::AnswerParser parser(split.ParserOptions());
      text::AnswerPieces pieces;
      parser.Push(text, pieces);
      parser.Finish(pieces);
      EXPECT_TRUE(parser.has_whole_calls()) << format.name << ": " << text;
      if (format.name == "kimi_k2") {
        EXPECT_NE(text.find(":2<|tool_call_argument_begin|>"), std::string::npos)
            << "two calls are in the conversation: " << text;
      }
      EXPECT_EQ(pieces.content, "") << format.name << ": " << text;
      ASSERT_FALSE(pieces.calls.empty()) << format.name << ": " << text;
      for (const text::ToolCallDelta& call : pieces.calls) {
        EXPECT_TRUE(call.name == "f" || (call.name == "g" && request.tools.only.empty()))
            << format.name << ": " << text;
        const Result<Json> arguments = ParseJson(call.arguments);
        ASSERT_TRUE(arguments.ok()) << format.name << ": " << text;
        if (call.name == "f") {
          EXPECT_TRUE((*arguments)["s"] == Json("a") || (*arguments)["s"] == Json("b")) << text;
        }
      }
    }
  }
}

TEST_F(RequiredCalls, FollowReasoningWithinItsBudget) {
  model_.tool_format = text::FindToolFormat("hermes");
  model_.reasoning_format = text::FindReasoningFormat("think");
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ChatRequest request;
    request.tools.tools = kTools.dump();
    request.tools.choice = ToolUse::Choice::kRequired;
    request.thinking_budget = 10;
    AnswerSplit split;
    ASSERT_FALSE(PrepareAnswer(model_, "assistant\n<think>\n", request, split));
    EXPECT_TRUE(split.begins_in_reasoning);
    const std::string text = Write(request.options.params.grammar, seed);
    text::AnswerParser parser(split.ParserOptions());
    text::AnswerPieces pieces;
    parser.Push(text, pieces);
    parser.Finish(pieces);
    EXPECT_LE(text.find("</think>"), 40u) << "ten tokens: " << text;
    EXPECT_FALSE(pieces.calls.empty()) << text;
    EXPECT_EQ(pieces.content, "") << text;
  }
}

}  // namespace
}  // namespace millrace::serve
