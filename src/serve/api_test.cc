// Completions through a real controller: texts, streams, stops, log-probabilities.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "serve/testing/fixtures.h"
#include "serve/testing/wrapped_generator.h"

namespace millrace::serve {
namespace {

TEST(Completions, AnswerWithTextAndUsage) {
  TestServer server;
  const Json answer =
      server.Call("/v1/completions", {{"model", "tiny"}, {"prompt", "abc"}, {"max_tokens", 5}});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_TRUE(answer["system_fingerprint"].is_null()) << "the test's model has none";
  EXPECT_EQ(answer["id"].get<std::string>().rfind("cmpl-", 0), 0u);
  EXPECT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["text"], "hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"], Json());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
  EXPECT_EQ(answer["usage"]["total_tokens"], 8);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

// Other workers continue every request after two tokens.
class TwoClasses final : public WrappedGenerator {
 public:
  Result<RequestId> Submit(cluster::GenerationRequest request, cluster::OutputSink sink) override {
    return WrappedGenerator::Submit(
        std::move(request),
        [sink = std::move(sink), tokens = size_t{0}](RequestOutput&& output) mutable {
          if (tokens == 0) output.fingerprint = "fp_a";
          if (tokens == 2) output.fingerprint = "fp_b";
          tokens += output.tokens.size();
          sink(std::move(output));
        });
  }
};

TEST(Completions, TheFingerprintIsOfTheWorkersThatComputedIt) {
  TwoClasses generator;
  TestServer server({.ready = false});
  generator.inner = server.engine;
  server.MakeReady(&generator);
  const Json asked = {{"prompt", "abc"}, {"max_tokens", 5}};
  EXPECT_EQ(server.Call("/v1/completions", asked)["system_fingerprint"], "fp_a+fp_b");
  EXPECT_EQ(
      server.Call("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 2}})["system_fingerprint"],
      "fp_a");
  Json streamed = asked;
  streamed["stream_options"] = {{"include_usage", true}};
  std::map<std::string, std::string> texts;
  for (const Json& event : server.Stream("/v1/completions", streamed)) {
    std::string& text = texts[event["system_fingerprint"]];
    for (const Json& choice : event["choices"]) text += choice["text"].get<std::string>();
  }
  EXPECT_EQ(texts, (std::map<std::string, std::string>{
                       {"fp_a", "he"}, {"fp_b", "llo"}, {"fp_a+fp_b", ""}}));
}

TEST(Completions, SixteenTokensByDefault) {
  TestServer server;
  const Json answer = server.Call("/v1/completions", {{"prompt", "abc"}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
}

TEST(Completions, EveryFormOfPrompt) {
  TestServer server;
  auto count = [&](Json prompt) {
    return server.Call("/v1/completions", {{"prompt", prompt}, {"max_tokens", 2}});
  };
  EXPECT_EQ(count("abc")["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(count({98, 2, 3, 4})["usage"]["prompt_tokens"], 4);
  const Json texts = count({"a", "bc"});
  EXPECT_EQ(texts["choices"].size(), 2u);
  EXPECT_EQ(texts["choices"][1]["index"], 1);
  EXPECT_EQ(texts["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(texts["usage"]["completion_tokens"], 4);
  EXPECT_EQ(count(Json::array({Json::array({98, 2}), Json::array({3})}))["choices"].size(), 2u);
}

TEST(Completions, SpecialTokensInTextStayTextByDefault) {
  TestServer server;
  auto prompt_tokens = [&](Json body) {
    body["prompt"] = "<|end|>";
    return server.Call("/v1/completions", body)["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_EQ(prompt_tokens(Json::object()), 7);
  EXPECT_EQ(prompt_tokens({{"parse_special", true}}), 1);
}

TEST(Completions, StreamedTextEqualsWholeText) {
  TestServer server;
  const Json body = {{"prompt", "abc"}, {"max_tokens", 11}};
  const auto events = server.Stream("/v1/completions", body);
  EXPECT_EQ(JoinedText(events), "hello world");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "text_completion");
    EXPECT_EQ(event["id"], events.front()["id"]);
    EXPECT_FALSE(event.contains("usage"));
  }
}

TEST(Completions, UsageInStreams) {
  TestServer server;
  Json body = {{"prompt", "abc"}, {"max_tokens", 4}, {"stream_options", {{"include_usage", true}}}};
  auto events = server.Stream("/v1/completions", body);
  EXPECT_EQ(events.front()["usage"], Json());
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 4);
  body["stream_options"] = {{"continuous_usage_stats", true}};
  events = server.Stream("/v1/completions", body);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 4);
  EXPECT_GE(events.front()["usage"]["completion_tokens"], 1);
}

TEST(Completions, StopStringsAcrossTokens) {
  TestServer server;
  Json body = {{"prompt", "x"}, {"max_tokens", 40}, {"stop", "o w"}};
  Json answer = server.Call("/v1/completions", body);
  EXPECT_EQ(answer["choices"][0]["text"], "hell");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], "o w");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7) << "the tokens of the stop string count";
  const auto events = server.Stream("/v1/completions", body);
  EXPECT_EQ(JoinedText(events), "hell");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "hello w");
  body["include_stop_str_in_output"] = false;
  body["stop"] = {"zzz", "wor", "lo wo"};
  answer = server.Call("/v1/completions", body);
  EXPECT_EQ(answer["choices"][0]["text"], "hel") << "the stop string that ends first wins";
  EXPECT_EQ(answer["choices"][0]["stop_reason"], "lo wo");
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Completions, StopStringInsideAToken) {
  TestServer server({.script = "say the word"});
  const Json answer =
      server.Call("/v1/completions", {{"prompt", "x"}, {"max_tokens", 30}, {"stop", "h"}});
  EXPECT_EQ(answer["choices"][0]["text"], "say t");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
}

// SDKs send a request again after a 500, and would get another one.
TEST(Completions, MasksThatLeaveNothingEndTheAnswer) {
  TestServer server;
  const Json body = {{"prompt", "\x02"}, {"max_tokens", 40}, {"n", 2}};
  const Json answer = server.Call("/v1/completions", body);
  EXPECT_EQ(answer["choices"].size(), 2u);
  for (const Json& choice : answer["choices"]) {
    EXPECT_EQ(choice["text"], "he");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["stop_reason"], "no_token_left");
  }
  const Json enough = {{"prompt", "x"}, {"max_tokens", 2}};
  EXPECT_EQ(server.Call("/v1/completions", enough)["choices"][0]["stop_reason"], Json());
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Completions, MasksThatLeaveNothingToBeginWithAreRefused) {
  TestServer server;
  const auto refusal = [&server](Json fields) {
    fields.update({{"prompt", "x"}, {"max_tokens", 9}});
    return server.Call("/v1/completions", fields, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_TRUE(refusal({{"min_tokens", 3}, {"allowed_token_ids", {kTinyEos}}})
                  .starts_with("allowed_token_ids and min_tokens leave no token"));
  EXPECT_TRUE(refusal({{"guided_choice", {"yes"}}, {"allowed_token_ids", {'n', 'o'}}})
                  .starts_with("allowed_token_ids and guided_choice leave no token"));
  EXPECT_TRUE(refusal({{"bad_words", {"n"}}, {"allowed_token_ids", {'n'}}})
                  .starts_with("allowed_token_ids and bad_words leave no token"));
  server.Call("/v1/completions", {{"prompt", "x"},
                                  {"max_tokens", 9},
                                  {"guided_choice", {"yes"}},
                                  {"allowed_token_ids", {'n', 'y'}}});
}

TEST(Completions, TextHeldForAStopStringIsSentAtTheEnd) {
  TestServer server;
  const Json body = {{"prompt", "x"}, {"max_tokens", 5}, {"stop", "lo and behold"}};
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "hello");
  EXPECT_EQ(JoinedText(server.Stream("/v1/completions", body)), "hello");
}

TEST(Completions, MinTokensDelaysStopStrings) {
  TestServer server;
  const Json answer = server.Call(
      "/v1/completions", {{"prompt", "x"}, {"max_tokens", 40}, {"stop", "l"}, {"min_tokens", 4}});
  EXPECT_EQ(answer["choices"][0]["text"], "hello wor");
}

TEST(Completions, EndOfSequenceAndStopTokens) {
  TestServer server({.script = "ab<|eos|>cd<|end|>"});
  Json body = {{"prompt", "x"}, {"max_tokens", 40}};
  Json choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], Json());
  body["ignore_eos"] = true;
  body["stop_token_ids"] = Json::array({kTinyEnd});
  choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "abcd");
  EXPECT_EQ(choice["stop_reason"], kTinyEnd);
  body["skip_special_tokens"] = false;
  choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "ab<|eos|>cd");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "ab<|eos|>cd<|end|>");
}

TEST(Completions, CharactersAreNeverSplit) {
  TestServer server({.script = "a€🙂é"});
  const Json body = {{"prompt", "x"}, {"max_tokens", 10}};
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "a€🙂é");
  for (const Json& event : server.Stream("/v1/completions", body)) {
    const std::string text = event["choices"][0]["text"];
    EXPECT_EQ(text.find("\xEF\xBF\xBD"), std::string::npos) << text;
  }
  const Json cut = {{"prompt", "x"}, {"max_tokens", 3}};  // "a" and two bytes of three
  EXPECT_EQ(server.Call("/v1/completions", cut)["choices"][0]["text"], "a\xEF\xBF\xBD");
}

TEST(Completions, ManySequencesKeepTheirIndices) {
  TestServer server;
  const Json body = {{"prompt", {"a", "b"}}, {"n", 3}, {"max_tokens", 5}};
  const Json answer = server.Call("/v1/completions", body);
  ASSERT_EQ(answer["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["index"], i);
    EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["text"], "hello");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  const auto events = server.Stream("/v1/completions", body);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(JoinedText(events, i), "hello");
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Completions, Logprobs) {
  TestServer server;
  const Json body = {{"prompt", "x"}, {"max_tokens", 3}, {"logprobs", 2}};
  const Json logprobs = server.Call("/v1/completions", body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"h", "e", "l"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({-0.5, -0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][0], (Json{{"b", -1.0}, {"c", -2.0}, {"h", -0.5}}));
  std::vector<Json> tokens;
  for (const Json& event : server.Stream("/v1/completions", body)) {
    for (const Json& token : event["choices"][0]["logprobs"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(Json(tokens), Json({"h", "e", "l"}));
}

TEST(Completions, EchoWithLogprobs) {
  TestServer server;
  Json body = {{"prompt", "ab"}, {"max_tokens", 2}, {"echo", true}};
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["text"], "abhe");
  EXPECT_EQ(JoinedText(server.Stream("/v1/completions", body)), "abhe");
  body["logprobs"] = 1;
  const Json choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b", "h", "e"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -0.5, -0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], Json());
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
  std::vector<Json> tokens;
  const auto events = server.Stream("/v1/completions", body);
  EXPECT_EQ(JoinedText(events), "abhe");
  for (const Json& event : events) {
    for (const Json& token : event["choices"][0]["logprobs"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(Json(tokens), Json({"a", "b", "h", "e"}));
}

TEST(Completions, HiddenTokensOfAnEchoHaveNoText) {
  TestServer server;
  const Json body = {
      {"prompt", {kTinyBos, 97, 98}}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 0}};
  const Json choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "abh");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"", "a", "b", "h"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1, 2}));
}

// The first token has no log-probability; null keeps its place, also if it is the only one.
TEST(Completions, APromptOfOneToken) {
  TestServer server;
  Json body = {{"prompt", {97}}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 1}};
  const Json choice = server.Call("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "ahe");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "h", "e"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"].size(), 3u);
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2}));
  std::vector<Json> tokens;
  for (const Json& event : server.Stream("/v1/completions", body)) {
    for (const Json& token : event["choices"][0]["logprobs"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(Json(tokens), Json({"a", "h", "e"}));

  body["max_tokens"] = 0;
  body["n"] = 2;
  const Json scored = server.Call("/v1/completions", body);
  for (const Json& one : scored["choices"]) {
    EXPECT_EQ(one["text"], "a");
    EXPECT_EQ(one["logprobs"]["tokens"], Json::array({"a"}));
    EXPECT_EQ(one["logprobs"]["token_logprobs"], Json::array({nullptr}));
    EXPECT_EQ(one["logprobs"]["top_logprobs"], Json::array({nullptr}));
    EXPECT_EQ(one["logprobs"]["text_offset"], Json::array({0}));
  }
  body = {{"prompt", {97}}, {"max_tokens", 1}, {"prompt_logprobs", 1}};
  EXPECT_EQ(server.Call("/v1/completions", body)["choices"][0]["prompt_logprobs"],
            Json::array({nullptr}));
}

TEST(Completions, EchoWithoutOutputScoresAPrompt) {
  TestServer server;
  const Json answer = server.Call(
      "/v1/completions", {{"prompt", "ab"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(answer["choices"][0]["text"], "ab");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"], Json({"a", "b"}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST(Completions, PromptLogprobsInVllmsFormat) {
  TestServer server;
  const Json choice =
      server.Call("/v1/completions",
                  {{"prompt", "ab"}, {"max_tokens", 1}, {"prompt_logprobs", 1}})["choices"][0];
  EXPECT_EQ(choice["prompt_logprobs"].size(), 2u);
  EXPECT_EQ(choice["prompt_logprobs"][0], Json());
  EXPECT_EQ(choice["prompt_logprobs"][1]["98"]["decoded_token"], "b");
}

TEST(Completions, NoSeedBut_1_MeansNone) {
  const ParseContext context{.vocab_size = 10, .max_model_len = 64};
  const auto seed = [&](const char* text) {
    const auto parsed =
        ParseCompletionRequest(fmt::format(R"({{"prompt": "a", "seed": {}}})", text), context);
    return std::get<CompletionRequest>(parsed).options.params.seed;
  };
  EXPECT_EQ(seed("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed("18446744073709551614"), std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(seed("9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed("-9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed("0"), 0u);
  EXPECT_EQ(seed("-2"), std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(seed("-1"), std::nullopt);
  EXPECT_EQ(seed("null"), std::nullopt);
  for (const char* beyond : {"18446744073709551616", "-9223372036854775809", "1e400"}) {
    const auto parsed =
        ParseCompletionRequest(fmt::format(R"({{"prompt": "a", "seed": {}}})", beyond), context);
    EXPECT_TRUE(std::holds_alternative<ApiError>(parsed)) << beyond;
  }
}

// Records the requests that the controller has accepted.
class AcceptedRequests final : public WrappedGenerator {
 public:
  Result<RequestId> Submit(cluster::GenerationRequest request, cluster::OutputSink sink) override {
    const SamplingParams params = request.params;
    auto id = WrappedGenerator::Submit(std::move(request), std::move(sink));
    if (id.ok()) accepted.push_back(params);
    return id;
  }
  std::vector<SamplingParams> accepted;
};

// Eight sequences that each fit alone, but not together, wait for each other.
TEST(Completions, SequencesThatDoNotFitTogetherRunInParts) {
  AcceptedRequests generator;
  TestServer server({.num_blocks = 20, .ready = false});
  generator.inner = server.engine;
  server.MakeReady(&generator);
  const Json body = {{"prompt", "abc"}, {"max_tokens", 200}, {"n", 8}, {"seed", 7}};
  const Json answer = server.Call("/v1/completions", body);
  const Json one = server.Call("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 200}});
  ASSERT_EQ(answer["choices"].size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], one["choices"][0]["text"]);
    EXPECT_EQ(answer["choices"][i]["finish_reason"], one["choices"][0]["finish_reason"]);
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8 * one["usage"]["completion_tokens"].get<int>());
  ASSERT_EQ(generator.accepted.size(), 9u);
  for (int i = 0; i < 8; ++i) {
    const SamplingParams& part = generator.accepted[static_cast<size_t>(i)];
    EXPECT_EQ(part.n, 1);
    EXPECT_EQ(part.seed, SequenceSeed(7, i)) << "as together";
  }
  EXPECT_TRUE(server.WaitUntilFree());

  // A stream, and an end by a stop string.
  Json stopped = body;
  stopped["stop"] = "wor";
  const auto events = server.Stream("/v1/completions", stopped);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(JoinedText(events, i), "hello ");
  EXPECT_TRUE(server.WaitUntilFree());
  // Beams need each other's KV.
  const Json beams = {{"prompt", "abc"}, {"max_tokens", 200}, {"use_beam_search", true}, {"n", 8}};
  const Json error = server.Call("/v1/completions", beams, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("8 sequences of"), std::string::npos) << error;
  // One that is too large alone stays a 400.
  TestServer small({.num_blocks = 4});
  small.Call("/v1/completions", body, 400);
}

TEST(Completions, ModelDefaultsApplyToUnsetFields) {
  TestServer server({.defaults = {.temperature = 0.25, .top_k = 7}});
  server.Call("/v1/completions", {{"prompt", "a"}, {"n", 1}});
  ParseContext context{.vocab_size = 10, .max_model_len = 64};
  context.defaults.temperature = 0.25;
  context.defaults.top_k = 7;
  auto defaulted = ParseCompletionRequest("{\"prompt\": \"a\"}", context);
  EXPECT_EQ(std::get<CompletionRequest>(defaulted).options.params.temperature, 0.25);
  EXPECT_EQ(std::get<CompletionRequest>(defaulted).options.params.top_k, 7);
  auto given =
      ParseCompletionRequest("{\"prompt\": \"a\", \"temperature\": 1, \"top_k\": -1}", context);
  EXPECT_EQ(std::get<CompletionRequest>(given).options.params.temperature, 1.0);
  EXPECT_EQ(std::get<CompletionRequest>(given).options.params.top_k, 0);
}

TEST(Completions, ARequestThatFailsInTheEngineFailsAlone) {
  TestServer server;
  const Json failing = {{"prompt", "\x01 fails"}, {"max_tokens", 4}};
  const Json good = {{"prompt", "good"}, {"max_tokens", 5}};
  auto fine = server.Post("/v1/completions", good);
  const Json error = server.Call("/v1/completions", failing, 500)["error"];
  EXPECT_EQ(error["type"], "server_error");
  EXPECT_EQ(error["message"].get<std::string>().find("/secret"), std::string::npos);
  ASSERT_TRUE(fine->WaitDone());
  EXPECT_EQ(fine->status(), 200);
  EXPECT_TRUE(server.WaitUntilFree());
}

}  // namespace
}  // namespace millrace::serve
