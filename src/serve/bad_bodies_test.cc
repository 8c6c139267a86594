// Bodies with one error each: the status, the field that the error names, and that the server still
// serves the next request.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

struct BadField {
  const char* field;  // set in an otherwise valid body
  const char* value;  // JSON
  const char* param;  // named in the error; "": null
};

// Invalid on both endpoints; the rest of the body is valid.
const BadField kBadOnBoth[] = {
    {"model", "5", "model"},
    {"model", "[]", "model"},
    {"stream", "1", "stream"},
    {"stream", "\"true\"", "stream"},
    {"stream_options", "{}", "stream_options"},
    {"stream_options", "5", "stream_options"},
    {"n", "0", "n"},
    {"n", "-1", "n"},
    {"n", "129", "n"},
    {"n", "1000000", "n"},
    {"n", "2147483648", "n"},
    {"n", "9223372036854775808", "n"},
    {"n", "18446744073709551615", "n"},
    {"n", "1.5", "n"},
    {"n", "1.0", "n"},
    {"n", "\"2\"", "n"},
    {"n", "true", "n"},
    {"n", "[1]", "n"},
    {"max_tokens", "-1", "max_tokens"},
    {"max_tokens", "-9223372036854775808", "max_tokens"},
    {"max_tokens", "2147483648", "max_tokens"},
    {"max_tokens", "1e3", "max_tokens"},
    {"max_tokens", "\"many\"", "max_tokens"},
    {"max_tokens", "{}", "max_tokens"},
    {"min_tokens", "-1", "min_tokens"},
    {"min_tokens", "\"1\"", "min_tokens"},
    {"min_tokens", "10", "min_tokens"},
    {"temperature", "-0.1", "temperature"},
    {"temperature", "-1", "temperature"},
    {"temperature", "101", "temperature"},
    {"temperature", "1e300", "temperature"},
    {"temperature", "\"hot\"", "temperature"},
    {"temperature", "true", "temperature"},
    {"temperature", "[0.5]", "temperature"},
    {"top_p", "0", "top_p"},
    {"top_p", "-0.5", "top_p"},
    {"top_p", "1.0001", "top_p"},
    {"top_p", "\"1\"", "top_p"},
    {"top_k", "-2", "top_k"},
    {"top_k", "0.5", "top_k"},
    {"top_k", "\"40\"", "top_k"},
    {"top_k", "4294967296", "top_k"},
    {"min_p", "-0.01", "min_p"},
    {"min_p", "1.01", "min_p"},
    {"min_p", "{}", "min_p"},
    {"repetition_penalty", "0", "repetition_penalty"},
    {"repetition_penalty", "-1", "repetition_penalty"},
    {"repetition_penalty", "101", "repetition_penalty"},
    {"repetition_penalty", "\"1\"", "repetition_penalty"},
    {"presence_penalty", "2.1", "presence_penalty"},
    {"presence_penalty", "-2.1", "presence_penalty"},
    {"presence_penalty", "\"0\"", "presence_penalty"},
    {"frequency_penalty", "2.1", "frequency_penalty"},
    {"frequency_penalty", "-3", "frequency_penalty"},
    {"frequency_penalty", "false", "frequency_penalty"},
    {"seed", "1.5", "seed"},
    {"seed", "\"7\"", "seed"},
    {"seed", "1e30", "seed"},
    {"logit_bias", "[]", "logit_bias"},
    {"logit_bias", "5", "logit_bias"},
    {"logit_bias", "{\"x\": 1}", "logit_bias"},
    {"logit_bias", "{\"\": 1}", "logit_bias"},
    {"logit_bias", "{\"1.0\": 1}", "logit_bias"},
    {"logit_bias", "{\" 1\": 1}", "logit_bias"},
    {"logit_bias", "{\"-1\": 1}", "logit_bias"},
    {"logit_bias", "{\"261\": 1}", "logit_bias"},
    {"logit_bias", "{\"2147483648\": 1}", "logit_bias"},
    {"logit_bias", "{\"9223372036854775808\": 1}", "logit_bias"},
    {"logit_bias", "{\"5\": \"high\"}", "logit_bias"},
    {"logit_bias", "{\"5\": null}", "logit_bias"},
    {"logit_bias", "{\"5\": 101}", "logit_bias"},
    {"logit_bias", "{\"5\": -101}", "logit_bias"},
    {"stop", "5", "stop"},
    {"stop", "{}", "stop"},
    {"stop", "\"\"", "stop"},
    {"stop", "[\"a\", \"\"]", "stop"},
    {"stop", "[5]", "stop"},
    {"stop", "[[\"a\"]]", "stop"},
    {"stop", "[null]", "stop"},
    {"stop",
     "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\","
     "\"f\",\"g\",\"h\"]",
     "stop"},
    {"stop_token_ids", "5", "stop_token_ids"},
    {"stop_token_ids", "[-1]", "stop_token_ids"},
    {"stop_token_ids", "[261]", "stop_token_ids"},
    {"stop_token_ids", "[2147483648]", "stop_token_ids"},
    {"stop_token_ids", "[9223372036854775808]", "stop_token_ids"},
    {"stop_token_ids", "[1.5]", "stop_token_ids"},
    {"stop_token_ids", "[\"1\"]", "stop_token_ids"},
    {"stop_token_ids", "{}", "stop_token_ids"},
    {"ignore_eos", "\"yes\"", "ignore_eos"},
    {"ignore_eos", "1", "ignore_eos"},
    {"skip_special_tokens", "0", "skip_special_tokens"},
    {"include_stop_str_in_output", "\"no\"", "include_stop_str_in_output"},
    {"prompt_logprobs", "-1", "prompt_logprobs"},
    {"prompt_logprobs", "21", "prompt_logprobs"},
    {"prompt_logprobs", "true", "prompt_logprobs"},
    {"best_of", "129", "best_of"},
    {"best_of", "1000000", "best_of"},
    {"best_of", "0", "best_of"},
    {"best_of", "\"1\"", "best_of"},
    {"priority", "\"high\"", "priority"},
    {"priority", "1.5", "priority"},
    {"priority", "2147483648", "priority"},
    {"cache_salt", "5", "cache_salt"},
    {"request_id", "{}", "request_id"},
    {"request_id", R"("a\nb")", "request_id"},
    {"response_format", "\"json\"", "response_format"},
    {"response_format", "{}", "response_format"},
    {"response_format", "{\"type\": 5}", "response_format"},
    {"response_format", R"({"type": "yaml"})", "response_format"},
    {"response_format", R"({"type": "json_schema"})", "response_format"},
    {"response_format", R"({"type": "json_schema", "json_schema": {}})", "response_format"},
    {"response_format", R"({"type": "json_schema", "json_schema": {"schema": 5}})",
     "response_format.json_schema.schema"},
    {"response_format", R"({"type": "json_schema", "json_schema": {"schema": {"type": "what"}}})",
     "response_format.json_schema.schema"},
    {"response_format", R"({"type": "structural_tag", "format": {}})", "response_format"},
    {"guided_json", "5", "guided_json"},
    {"guided_json", "\"{\"", "guided_json"},
    {"guided_json", R"({"$ref": "#/nowhere"})", "guided_json"},
    {"guided_json", R"({"allOf": [{"type": "string"}, {"type": "number"}]})", "guided_json"},
    {"guided_regex", "[\"a\"]", "guided_regex"},
    {"guided_regex", "\"(\"", "guided_regex"},
    {"guided_choice", "[]", "guided_choice"},
    {"guided_choice", "[5]", "guided_choice"},
    {"guided_choice", "[\"\"]", "guided_choice"},
    {"guided_grammar", "\"root ::= x\"", "guided_grammar"},
    {"guided_grammar", "\"\"", "guided_grammar"},
    {"grammar", "\"root ::= x\"", "grammar"},
    {"grammar", "[]", "grammar"},
    {"ebnf", "\"root ::= [\"", "ebnf"},
    {"structural_tag", "\"text\"", "structural_tag"},
    {"structured_outputs", "{}", "structured_outputs"},
    {"structured_outputs", R"({"json": {}, "regex": "a"})", "structured_outputs.regex"},
    {"structured_outputs", R"({"choice": "a"})", "structured_outputs.choice"},
    {"use_beam_search", "1", "use_beam_search"},
    {"logits_processors", "[\"x\"]", "logits_processors"},
    {"prompt_embeds", "\"AAAA\"", "prompt_embeds"},
    {"truncate_prompt_tokens", "0", "truncate_prompt_tokens"},
    {"truncate_prompt_tokens", "-2", "truncate_prompt_tokens"},
    {"truncation_side", "\"middle\"", "truncation_side"},
    {"return_token_ids", "1", "return_token_ids"},
    {"return_tokens_as_token_ids", "\"yes\"", "return_tokens_as_token_ids"},
    {"allowed_token_ids", "[]", "allowed_token_ids"},
    {"allowed_token_ids", "[\"a\"]", "allowed_token_ids"},
    {"allowed_token_ids", "[99999]", "allowed_token_ids"},
    {"bad_words", "\"x\"", "bad_words"},
    {"bad_words", "[\"\"]", "bad_words"},
    {"bad_words", "[5]", "bad_words"},
    {"logprob_token_ids", "[261]", "logprob_token_ids"},
    {"logprob_token_ids", "[-1]", "logprob_token_ids"},
    {"prompt_cache_key", "5", "prompt_cache_key"},
};

const BadField kBadCompletions[] = {
    {"prompt", "null", "prompt"},
    {"prompt", "5", "prompt"},
    {"prompt", "true", "prompt"},
    {"prompt", "{}", "prompt"},
    {"prompt", "[]", "prompt"},
    {"prompt", "\"\"", "prompt"},
    {"prompt", "[\"\"]", "prompt"},
    {"prompt", "[null]", "prompt"},
    {"prompt", "[true]", "prompt"},
    {"prompt", "[[]]", "prompt"},
    {"prompt", "[{}]", "prompt"},
    {"prompt", "[\"a\", 5]", "prompt"},
    {"prompt", "[5, \"a\"]", "prompt"},
    {"prompt", "[[5], \"a\"]", "prompt"},
    {"prompt", "[\"a\", [5]]", "prompt"},
    {"prompt", "[-1]", "prompt"},
    {"prompt", "[261]", "prompt"},
    {"prompt", "[2147483648]", "prompt"},
    {"prompt", "[9223372036854775808]", "prompt"},
    {"prompt", "[1.5]", "prompt"},
    {"prompt", "[[5, 999999]]", "prompt"},
    {"prompt", "[[5], []]", "prompt"},
    {"prompt", "[[5, \"a\"]]", "prompt"},
    {"prompt", "[[[5]]]", "prompt"},
    {"echo", "1", "echo"},
    {"echo", "\"true\"", "echo"},
    {"max_tokens", "0", "max_tokens"},
    {"max_tokens", "256", "prompt"},
    {"max_tokens", "2147483647", "prompt"},
    {"logprobs", "true", "logprobs"},
    {"logprobs", "-1", "logprobs"},
    {"logprobs", "21", "logprobs"},
    {"logprobs", "1000000", "logprobs"},
    {"logprobs", "\"5\"", "logprobs"},
    {"suffix", "5", "suffix"},
    {"suffix", "\"the end\"", "suffix"},
    {"add_special_tokens", "5", "add_special_tokens"},
    {"parse_special", "5", "parse_special"},
};

const BadField kBadChats[] = {
    {"messages", "null", "messages"},
    {"messages", "[]", "messages"},
    {"messages", "{}", "messages"},
    {"messages", "\"hello\"", "messages"},
    {"messages", "[5]", "messages"},
    {"messages", "[null]", "messages"},
    {"messages", "[[]]", "messages"},
    {"messages", "[{}]", "messages"},
    {"messages", "[{\"content\": \"a\"}]", "messages"},
    {"messages", "[{\"role\": 5, \"content\": \"a\"}]", "messages"},
    {"messages", "[{\"role\": \"\", \"content\": \"a\"}]", "messages"},
    {"messages", "[{\"role\": \"user\"}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": null}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": 5}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": {}}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": [5]}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": [{}]}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": 5}]}]",
     "messages"},
    {"messages",
     "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": "
     "{\"url\": \"http://169.254.169.254/\"}}]}]",
     "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": [{\"type\": \"input_audio\"}]}]", "messages"},
    {"messages", "[{\"role\": \"assistant\", \"tool_calls\": 5}]", "messages"},
    {"messages", "[{\"role\": \"assistant\", \"tool_calls\": [5]}]", "messages"},
    {"messages", "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": 5}]}]", "messages"},
    {"messages", "[{\"role\": \"robot\", \"content\": \"a\"}]", "messages"},
    {"messages", "[{\"role\": \"user\", \"content\": \"refused\"}]",
     "messages"},  // refused by the template
    {"max_tokens", "0", "max_tokens"},
    {"max_tokens", "256", "messages"},
    {"max_completion_tokens", "0", "max_completion_tokens"},
    {"max_completion_tokens", "\"5\"", "max_completion_tokens"},
    {"max_completion_tokens", "256", "messages"},
    {"logprobs", "5", "logprobs"},
    {"logprobs", "\"true\"", "logprobs"},
    {"top_logprobs", "5", "top_logprobs"},
    {"top_logprobs", "-1", "top_logprobs"},
    {"top_logprobs", "21", "top_logprobs"},
    {"top_logprobs", "1000000", "top_logprobs"},
    {"top_logprobs", "\"5\"", "top_logprobs"},
    {"tools", "5", "tools"},
    {"tools", "{}", "tools"},
    {"tools", "[5]", "tools"},
    {"tools", "[{}]", "tools"},
    {"tools", "[{\"type\": \"function\"}]", "tools"},
    {"tools", "[{\"type\": \"function\", \"function\": {}}]", "tools"},
    {"tools", R"([{"type": "function", "function": {"name": ""}}])", "tools"},
    {"tools", R"([{"type": "function", "function": {"name": "a\nb"}}])", "tools"},
    {"tools", R"([{"type": "function", "function": {"name": "say \"a\""}}])", "tools"},
    {"tools", R"([{"type": "function", "function": {"name": "a", "parameters": "{}"}}])", "tools"},
    {"tools", "[{\"type\": \"web\", \"function\": {\"name\": \"f\"}}]", "tools"},
    {"tool_choice", "5", "tool_choice"},
    {"tool_choice", "\"required\"", "tool_choice"},  // without tools
    {"tool_choice", "\"often\"", "tool_choice"},
    {"tool_choice", R"({"type": "function", "function": {"name": "f"}})", "tool_choice"},
    {"thinking_token_budget", "-1", "thinking_token_budget"},
    {"thinking_token_budget", "5", "thinking_token_budget"},  // the model does not reason
    {"reasoning_effort", "5", "reasoning_effort"},
    {"include_reasoning", "5", "include_reasoning"},
    {"tool_choice", "{\"type\": \"function\"}", "tool_choice"},
    {"parallel_tool_calls", "5", "parallel_tool_calls"},
    {"functions", "[{\"name\": \"f\"}]", "functions"},
    {"function_call", "{\"name\": \"f\"}", "function_call"},
    {"audio", "{\"voice\": \"x\"}", "audio"},
    {"modalities", "\"text\"", "modalities"},
    {"modalities", "[\"audio\"]", "modalities"},
    {"chat_template", "\"{{ 1 }}\"", "chat_template"},
    {"chat_template_kwargs", "5", "chat_template_kwargs"},
    {"chat_template_kwargs", "{\"messages\": []}", "chat_template_kwargs"},
    {"chat_template_kwargs", "{\"tokenize\": true}", "chat_template_kwargs"},
    {"add_generation_prompt", "5", "add_generation_prompt"},
    {"continue_final_message", "1", "continue_final_message"},
    {"echo", "true", "echo"},
};

const char* kBadTexts[] = {
    "",
    " ",
    "{",
    "}",
    "[]",
    "5",
    "null",
    "\"text\"",
    "{\"prompt\": \"a\",}",
    "{'prompt': 'a'}",
    "{\"prompt\": \"a\" \"n\": 1}",
    "{\"prompt\": NaN}",
    "{\"temperature\": 1e400, \"prompt\": \"a\"}",
    "{\"temperature\": Infinity, \"prompt\": \"a\"}",
    "{\"prompt\": \"\xff\"}",
    "{\"prompt\": \"\\ud800\"}",
    "{\"prompt\": \"a\"} x",
    "{\"prompt\": \"a\"",
    "\xef\xbb\xbf",
    "{\"prompt\": \"\x01\"}",
    "{\"prompt\": 01}",
    "{\"prompt\": \"a\", \"n\": +1}",
};

class BadBodies : public testing::Test {
 protected:
  void ExpectRefused(const std::string& path, const std::string& body, const std::string& param) {
    ++bodies_;
    auto reply = server_.Start("POST", path, body, {{"Content-Type", "application/json"}});
    ASSERT_TRUE(reply->WaitDone()) << body;
    EXPECT_EQ(reply->status(), 400) << path << " " << body << " -> " << reply->body();
    auto answer = ParseJson(reply->body());
    ASSERT_TRUE(answer.ok()) << body;
    const Json error = answer->value("error", Json::object());
    const std::set<std::string> keys = {"code", "message", "param", "type"};
    std::set<std::string> seen;
    for (const auto& [key, value] : error.items()) seen.insert(key);
    EXPECT_EQ(seen, keys) << body;
    EXPECT_FALSE(error.value("message", "").empty()) << body;
    EXPECT_EQ(error["param"], param.empty() ? Json() : Json(param)) << body << reply->body();
    EXPECT_EQ(reply->Header("x-should-retry"), "false");
  }
  void ExpectServed() {
    const Json answer = server_.Call("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}});
    EXPECT_EQ(answer["choices"][0]["text"], "he");
  }
  void RunTable(const std::string& path, const Json& good, std::span<const BadField> table) {
    for (const BadField& bad : table) {
      Json body = good;
      body[bad.field] = Json::parse(bad.value);
      ExpectRefused(path, body.dump(), bad.param);
    }
    ExpectServed();
  }

  TestServer server_;
  int bodies_ = 0;
  const Json completion_ = {{"prompt", "a"}, {"max_tokens", 5}};
  const Json chat_ = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 5}};
};

TEST_F(BadBodies, TheValidBodiesAreAccepted) {
  server_.Call("/v1/completions", completion_);
  server_.Call("/v1/chat/completions", chat_);
}

TEST_F(BadBodies, CompletionsRefuseEachError) {
  RunTable("/v1/completions", completion_, kBadOnBoth);
  RunTable("/v1/completions", completion_, kBadCompletions);
  EXPECT_GE(bodies_, 150);
}

TEST_F(BadBodies, ChatsRefuseEachError) {
  RunTable("/v1/chat/completions", chat_, kBadOnBoth);
  RunTable("/v1/chat/completions", chat_, kBadChats);
  EXPECT_GE(bodies_, 150);
}

TEST_F(BadBodies, TextThatIsNotAJsonObject) {
  for (const char* text : kBadTexts) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
      ExpectRefused(path, text, "");
    }
  }
  ExpectServed();
}

TEST_F(BadBodies, DeepNestingIsRefusedByDepth) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"prompt\":";
    for (int i = 0; i < 100'000; ++i) deep += open;
    ExpectRefused("/v1/completions", deep, "");
  }
  ExpectServed();
}

TEST_F(BadBodies, StreamOptionsAreChecked) {
  Json body = completion_;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", 1}};
  ExpectRefused("/v1/completions", body.dump(), "stream_options.include_usage");
  body["stream_options"] = {{"continuous_usage_stats", "x"}};
  ExpectRefused("/v1/completions", body.dump(), "stream_options.continuous_usage_stats");
  body["stream_options"] = nullptr;
  body["prompt_logprobs"] = 1;
  ExpectRefused("/v1/completions", body.dump(), "prompt_logprobs");
}

// An error shows what was sent: on one line, and cut when it is long.
TEST_F(BadBodies, ErrorsShowTheValue) {
  const auto message = [&](const char* field, const Json& value) {
    Json body = chat_;
    body[field] = value;
    return server_.Call("/v1/chat/completions", body, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message("response_format", {{"type", "json"}}),
            "response_format.type must be text, json_object, json_schema or structural_tag, got "
            "\"json\"");
  EXPECT_EQ(message("max_tokens", "5"),
            "max_tokens must be an integer of at least 1 (and below 2^31), got \"5\"");
  EXPECT_EQ(message("stream", Json::array()), "stream must be true or false, got []");
  EXPECT_EQ(message("n", {{"a", {1, nullptr}}}),
            "n must be an integer in [1, 128], got {\"a\": [1, null]}");
  EXPECT_EQ(message("stream", "a\nb\"c"), "stream must be true or false, got \"a\\nb\\\"c\"");
  const std::string cut = message("stream", std::string(100'000, 'x'));
  EXPECT_EQ(cut, "stream must be true or false, got \"" + std::string(64, 'x') + "...\"");
  EXPECT_LT(message("stream", Json(std::vector<std::string>(100'000, "x"))).size(), 120u);
  EXPECT_EQ(message("stop", {"a", ""}), "stop[1] must have 1 to 1024 bytes, got 0");
}

TEST_F(BadBodies, BudgetsBoundTheWholeRequest) {
  Json many = completion_;
  many["prompt"] = Json::array();
  for (int i = 0; i < 513; ++i) many["prompt"].push_back("a");
  ExpectRefused("/v1/completions", many.dump(), "prompt");
  many["prompt"].erase(512);
  many["n"] = 3;  // 512 x 3 sequences
  ExpectRefused("/v1/completions", many.dump(), "n");
  Json wide = completion_;
  wide["n"] = 128;
  wide["max_tokens"] = 250;
  wide["logprobs"] = 20;  // 128 x 250 x 21 entries
  ExpectRefused("/v1/completions", wide.dump(), "logprobs");
  Json chatty = chat_;
  chatty["messages"] = Json::array();
  for (int i = 0; i < 10'000; ++i) {
    chatty["messages"].push_back({{"role", "user"}, {"content", "a"}});
  }
  ExpectRefused("/v1/chat/completions", chatty.dump(), "messages");
  ExpectServed();
}

TEST_F(BadBodies, ContextOverflowCarriesTheNumbers) {
  Json body = {{"prompt", std::string(250, 'x')}, {"max_tokens", 6}};
  server_.Call("/v1/completions", body);
  body["max_tokens"] = 7;
  const Json error = server_.Call("/v1/completions", body, 400)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const std::string message = error["message"];
  for (const char* number : {"256", "257", "250", "7"}) {
    EXPECT_NE(message.find(number), std::string::npos) << message;
  }
  const Json full = {{"prompt", std::string(256, 'x')}};
  EXPECT_EQ(server_.Call("/v1/completions", full, 400)["error"]["code"], "context_length_exceeded");
  const Json huge = {{"prompt", std::string(1 << 20, 'x')}};
  EXPECT_EQ(server_.Call("/v1/completions", huge, 400)["error"]["code"], "context_length_exceeded");
}

TEST_F(BadBodies, UnknownModelsAre404) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    Json body = path == std::string("/v1/completions") ? completion_ : chat_;
    body["model"] = "gpt-4\n\x1b[31m";
    const Json error = server_.Call(path, body, 404)["error"];
    EXPECT_EQ(error["code"], "model_not_found");
    EXPECT_EQ(error["param"], "model");
    EXPECT_EQ(error["message"].get<std::string>().find('\n'), std::string::npos);
  }
}

TEST_F(BadBodies, UnknownAndNullFieldsAreNotRefused) {
  Json body = completion_;
  for (const char* name : {"user", "metadata", "store", "service_tier", "verbosity", "nonsense"}) {
    body[name] = {{"anything", 1}};
  }
  for (const BadField& bad : kBadOnBoth) {
    if (std::string(bad.field) != "stream") body[bad.field] = nullptr;
  }
  server_.Call("/v1/completions", body);
}

}  // namespace
}  // namespace millrace::serve
