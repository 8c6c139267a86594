// Fields of vLLM that shape the prompt or say which tokens an answer has.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

std::vector<int> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

Json Completion(const Json& more) {
  Json body = {{"prompt", "abcdef"}, {"max_tokens", 4}, {"return_token_ids", true}};
  body.update(more);
  return body;
}

Json Chat(const Json& more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_tokens", 4}};
  body.update(more);
  return body;
}

TEST(Fields, TokenIdsOfACompletion) {
  TestServer server;
  const Json choice = server.Call("/v1/completions", Completion(Json::object()))["choices"][0];
  EXPECT_EQ(choice["token_ids"], Json(Bytes("hell")));
  std::vector<int> prompt = Bytes("abcdef");
  EXPECT_EQ(choice["prompt_token_ids"].size(), prompt.size());
  EXPECT_EQ(server.Call("/v1/completions", Completion({{"return_token_ids", false}}))["choices"][0]
                .contains("token_ids"),
            false);
}

TEST(Fields, TokenIdsOfStreamsAddUp) {
  TestServer server;
  Json ids = Json::array(), prompts = Json::array();
  for (const Json& event : server.Stream("/v1/completions", Completion(Json::object()))) {
    for (const Json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
    if (event["choices"][0].contains("prompt_token_ids")) prompts.push_back(event);
  }
  EXPECT_EQ(ids, Json(Bytes("hell")));
  EXPECT_EQ(prompts.size(), 1u);

  ids = Json::array();
  prompts = Json::array();
  for (const Json& event :
       server.Stream("/v1/chat/completions", Chat({{"return_token_ids", true}}))) {
    for (const Json& id : event["choices"][0].value("token_ids", Json::array())) ids.push_back(id);
    if (event.contains("prompt_token_ids")) prompts.push_back(event["prompt_token_ids"]);
  }
  EXPECT_EQ(ids, Json(Bytes("hell")));
  ASSERT_EQ(prompts.size(), 1u);
  const Json whole = server.Call("/v1/chat/completions", Chat({{"return_token_ids", true}}));
  EXPECT_EQ(whole["prompt_token_ids"], prompts[0]);
  EXPECT_EQ(whole["choices"][0]["token_ids"], ids);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], prompts[0].size());
}

TEST(Fields, LogprobsNameTokensByTheirIds) {
  TestServer server;
  const Json more = {{"logprobs", 1}, {"return_tokens_as_token_ids", true}};
  const Json logprobs = server.Call("/v1/completions", Completion(more))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "token_id:104");
  EXPECT_TRUE(logprobs["top_logprobs"][0].contains("token_id:104"));
  const Json chat = Chat({{"logprobs", true}, {"return_tokens_as_token_ids", true}});
  const Json first =
      server.Call("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(first["token"], "token_id:104");
  EXPECT_EQ(first["bytes"], Json::array({104}));
}

TEST(Fields, PromptsAreCut) {
  TestServer server;
  const auto ids = [&](const Json& more) {
    return server.Call("/v1/completions", Completion(more))["choices"][0]["prompt_token_ids"];
  };
  const Json whole = ids(Json::object());
  const Json two = ids({{"truncate_prompt_tokens", 2}});
  EXPECT_EQ(two, Json({whole[whole.size() - 2], whole[whole.size() - 1]}));
  const Json begin = ids({{"truncate_prompt_tokens", 2}, {"truncation_side", "right"}});
  EXPECT_EQ(begin, Json({whole[0], whole[1]}));
  EXPECT_EQ(ids({{"truncate_prompt_tokens", 200}}), whole);
  // Longer than the model, and much longer.
  for (const size_t bytes : {size_t{300}, size_t{100'000}}) {
    Json body = Completion({{"prompt", std::string(bytes, 'z')}});
    server.Call("/v1/completions", body, 400);
    body["truncate_prompt_tokens"] = -1;
    EXPECT_EQ(server.Call("/v1/completions", body)["usage"]["prompt_tokens"], 252);
  }
  const Json cut = Chat({{"truncate_prompt_tokens", 3}});
  EXPECT_EQ(server.Call("/v1/chat/completions", cut)["usage"]["prompt_tokens"], 3);
  server.Call("/v1/completions", Completion({{"echo", true}, {"truncate_prompt_tokens", 3}}), 400);
}

TEST(Fields, TheLastMessageIsContinued) {
  TestServer server;
  const auto prompt = [&](const std::string& last) {
    const Json messages = {{{"role", "user"}, {"content", "hi"}},
                           {{"role", "assistant"}, {"content", last}}};
    const Json body = {{"messages", messages}, {"continue_final_message", true}};
    return server.Call("/apply-template", body)["prompt"].get<std::string>();
  };
  EXPECT_TRUE(prompt("Once upon").ends_with("assistant:Once upon"));
  EXPECT_TRUE(prompt("Once <|end|> x").ends_with("assistant:Once <|end|> x"));
  EXPECT_TRUE(prompt("Once \n").ends_with("assistant:Once \n"));
  Json body = Chat({{"continue_final_message", true}, {"add_generation_prompt", true}});
  EXPECT_EQ(server.Call("/v1/chat/completions", body, 400)["error"]["param"],
            "continue_final_message");
  body = Chat({{"continue_final_message", true}});
  body["messages"][0]["content"] = "";
  EXPECT_EQ(server.Call("/v1/chat/completions", body, 400)["error"]["param"],
            "continue_final_message");
}

TEST(Fields, EarlierReasoningMayHaveItsOtherName) {
  TestServerOptions options;
  options.service.takes_templates = true;
  TestServer server(std::move(options));
  const auto prompt = [&](const Json& more) {
    Json message = {{"role", "assistant"}, {"content", "a"}};
    message.update(more);
    const Json body =
        Chat({{"messages", {message}}, {"chat_template", "x{{ messages[0].reasoning_content }}"}});
    return server.Call("/v1/chat/completions", body)["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_EQ(prompt({{"reasoning_content", "12345"}}), 6);
  EXPECT_EQ(prompt({{"reasoning", "12345"}}), 6);
  EXPECT_EQ(prompt({{"reasoning", "12345"}, {"reasoning_content", "1"}}), 2);
}

// OpenAI has the schema in an object of its own; llama.cpp and others also take it beside the type.
TEST(Fields, SchemasBesideTheTypeConstrain) {
  const Json schema = {{"enum", {"x"}}};
  const auto parsed = [](const Json& format) {
    const auto made = ParseChatRequest(DumpJson(Chat({{"response_format", format}})),
                                       {.vocab_size = kTinyVocab, .max_model_len = 64});
    return std::get<ChatRequest>(made).options;
  };
  const GenerationOptions wrapped =
      parsed({{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}});
  EXPECT_FALSE(wrapped.params.grammar.empty());
  for (const char* type : {"json_object", "json_schema"}) {
    const GenerationOptions beside = parsed({{"type", type}, {"schema", schema}});
    EXPECT_EQ(beside.params.grammar, wrapped.params.grammar);
    EXPECT_EQ(beside.constraint_field, "response_format.schema");
    EXPECT_EQ(beside.ignored, "");
  }
  TestServer server;
  const Json unsound = {{"type", "json_object"}, {"schema", {{"type", "what"}}}};
  const Json body = Chat({{"response_format", unsound}});
  EXPECT_EQ(server.Call("/v1/chat/completions", body, 400)["error"]["param"],
            "response_format.schema");
}

TEST(Pings, ComeWhileAStreamIsSilent) {
  TestServerOptions options;
  options.service.ping_after = Duration::Millis(20);
  options.service.resumable = {.enabled = true};
  TestServer server(options);
  server.gate.Close();
  Json body = Completion({{"stream", true}});
  auto resumable = server.Post("/v1/completions", body);
  auto messages = server.Post(
      "/v1/messages",
      {{"max_tokens", 4}, {"stream", true}, {"messages", Chat(Json::object())["messages"]}});
  auto ollama = server.Post("/api/generate", {{"prompt", "x"}});
  auto whole = server.Post("/v1/completions", Completion(Json::object()));
  ASSERT_TRUE(resumable->WaitWrites(2));
  ASSERT_TRUE(messages->WaitWrites(2));
  EXPECT_EQ(resumable->body().substr(0, 16), ": ping\n\n: ping\n\n");
  server.gate.Open();
  for (const auto& reply : {resumable, messages, ollama, whole}) ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(whole->body().find("ping"), std::string::npos);
  EXPECT_EQ(ollama->body().find("ping"), std::string::npos);
  // A client that comes back gets events only, with their numbers.
  auto again = server.Start("GET", "/v1/streams/" + resumable->Header("x-stream-id"));
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->body().substr(0, 4), "id: ");
  EXPECT_EQ(again->body().find("ping"), std::string::npos);
}

TEST(Fields, BadWordsBecomeTokens) {
  TestServer server;
  // The stage does not heed them; that is in sampler_test.
  server.Call("/v1/completions", Completion({{"bad_words", {"the", " x"}}}));
  const Json error =
      server.Call("/v1/completions", Completion({{"bad_words", {std::string(200, 'x')}}}), 400);
  EXPECT_EQ(error["error"]["message"], "a word of bad_words has 200 tokens, the limit is 64");
}

TEST(Fields, LogprobsOfGivenTokens) {
  TestServer server;
  const Json more = {{"logprob_token_ids", {'x', 'y'}}};
  const Json choice = server.Call("/v1/completions", Completion(more))["choices"][0];
  const Json first = choice["logprobs"]["top_logprobs"][0];
  EXPECT_TRUE(first.contains("x") && first.contains("y")) << first;
  const Json chat =
      server.Call("/v1/chat/completions", Chat({{"logprobs", true}, {"logprob_token_ids", {'x'}}}));
  const Json top = chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0]["token"], "x");
}

double LogprobOf(const Json& choice) {
  double sum = 0;
  for (const Json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
  return sum;
}

TEST(Fields, BestOfAnswersTheLikeliest) {
  TestServer server;
  const Json unlike = {{"seed", kUnlikeSeed}, {"logprobs", 0}, {"temperature", 1}};
  Json all = Completion(unlike), best = Completion(unlike);
  all["n"] = 6;
  best["n"] = 2;
  best["best_of"] = 6;
  std::vector<double> every, kept;
  const Json whole = server.Call("/v1/completions", all);
  for (const Json& c : whole["choices"]) every.push_back(LogprobOf(c));
  const Json answer = server.Call("/v1/completions", best);
  for (const Json& c : answer["choices"]) {
    EXPECT_EQ(c["index"], kept.size());
    kept.push_back(LogprobOf(c));
  }
  std::ranges::sort(every, std::greater<>());
  EXPECT_EQ(kept, std::vector<double>(every.begin(), every.begin() + 2));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6 * 4);

  best.erase("logprobs");
  const Json bare = server.Call("/v1/completions", best);
  EXPECT_EQ(bare["choices"].size(), 2u);
  EXPECT_TRUE(bare["choices"][0]["logprobs"].is_null());
  best["stream"] = true;
  EXPECT_EQ(server.Call("/v1/completions", best, 400)["error"]["param"], "best_of");
}

TEST(Fields, BeamSearch) {
  TestServer server;
  const Json beams = {{"use_beam_search", true}, {"n", 3}};
  const Json answer = server.Call("/v1/completions", Completion(beams));
  ASSERT_EQ(answer["choices"].size(), 3u);
  EXPECT_EQ(answer["choices"][0]["text"], "hell");
  // The likeliest other: "b" (-1) once in place of the script (-0.5).
  for (const int i : {1, 2}) {
    const auto text = answer["choices"][i]["text"].get<std::string>();
    EXPECT_EQ(std::ranges::count(text, 'b'), 1) << text;
  }
  Json two = Completion({{"use_beam_search", true}, {"best_of", 3}, {"n", 2}});
  EXPECT_EQ(server.Call("/v1/completions", two)["choices"].size(), 2u);

  std::vector<std::string> texts(3);
  for (const Json& event : server.Stream("/v1/completions", Completion(beams))) {
    for (const Json& c : event["choices"]) texts[c["index"]] += c["text"].get<std::string>();
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(texts[i], answer["choices"][i]["text"]);
}

TEST(Fields, WhatChangesADistributionDoesNotGoWithABeamSearch) {
  TestServer server;
  const Json fields = {{"temperature", 1},
                       {"use_beam_search", nullptr},
                       {"stop", "x"},
                       {"bad_words", {"x"}},
                       {"min_tokens", 1},
                       {"length_penalty", 100},
                       {"logit_bias", {{"5", 1}}},
                       {"presence_penalty", 1},
                       {"allowed_token_ids", {1}},
                       {"prompt_logprobs", 0}};
  for (const auto& [field, value] : fields.items()) {
    Json body = Completion({{"use_beam_search", true}});
    body[field] = value;
    if (value.is_null()) {
      server.Call("/v1/completions", body);
      continue;
    }
    EXPECT_EQ(server.Call("/v1/completions", body, 400)["error"]["param"], field);
  }
  Json body = Completion({{"use_beam_search", true}, {"n", 11}});
  EXPECT_EQ(server.Call("/v1/completions", body, 400)["error"]["param"], "use_beam_search");
  body = Completion({{"use_beam_search", true}, {"guided_regex", "a"}});
  EXPECT_EQ(server.Call("/v1/completions", body, 400)["error"]["param"], "use_beam_search");
}

TEST(Fields, RequestsMayHaveTheirOwnTemplate) {
  TestServer server({.service = {.takes_templates = true}});
  const Json own = {{"chat_template", "{% for m in messages %}[{{ m.content }}]{% endfor %}"}};
  const Json prompt = server.Call("/apply-template", Chat(own));
  EXPECT_EQ(prompt["prompt"], "[x]");
  Json ids = Chat(own);
  ids["return_token_ids"] = true;
  EXPECT_EQ(server.Call("/v1/chat/completions", ids)["prompt_token_ids"], Json(Bytes("[x]")));
  for (const char* bad : {"{% for %}", "{{ raise_exception('no') }}",
                          "{% for i in range(100000000) %}x{% endfor %}"}) {
    const Json error =
        server.Call("/v1/chat/completions", Chat({{"chat_template", bad}}), 400)["error"];
    EXPECT_EQ(error["param"], "chat_template") << bad;
  }
}

}  // namespace
}  // namespace millrace::serve
