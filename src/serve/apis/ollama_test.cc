// ollama's API: the same answers as those of the chat route, in its form.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "serve/apis/ollama_api.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

constexpr char kOllamaAnswer[] =
    "<think>hm</think>Sure.<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}</tool_call>";

Json OllamaBody() {
  return {{"model", "tiny:latest"},
          {"messages", {{{"role", "user"}, {"content", "x"}}}},
          {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
          {"options", {{"num_predict", 200}, {"num_ctx", 4096}}}};
}

TEST(Ollama, AWholeAnswer) {
  TestServer server(Reciting(kOllamaAnswer));
  Json body = OllamaBody();
  body["stream"] = false;
  auto reply = server.Post("/api/chat", body);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "options.num_ctx");
  const Json answer = Json::parse(reply->body());
  EXPECT_EQ(answer["message"]["content"], "Sure.");
  EXPECT_EQ(answer["message"]["thinking"], "hm");
  EXPECT_EQ(answer["message"]["tool_calls"][0]["function"]["arguments"], Json({{"s", "a"}}));
  EXPECT_EQ(answer["done"], true);
  EXPECT_EQ(answer["done_reason"], "stop");
  EXPECT_GT(answer["eval_count"], 0);
}

TEST(Ollama, AStreamIsLinesOfJson) {
  TestServer server(Reciting(kOllamaAnswer));
  auto reply = server.Post("/api/chat", OllamaBody());
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("content-type"), "application/x-ndjson");
  std::string content, thinking;
  std::vector<Json> lines;
  std::istringstream in(reply->body());
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
    content += lines.back()["message"].value("content", "");
    thinking += lines.back()["message"].value("thinking", "");
    EXPECT_EQ(lines.back()["done"], in.peek() == EOF);
  }
  EXPECT_EQ(content, "Sure.");
  EXPECT_EQ(thinking, "hm");
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines[lines.size() - 2]["message"]["tool_calls"][0]["function"]["name"], "f");
}

TEST(Ollama, ACallThatIsCutOffIsLeftOut) {
  TestServer server(Reciting(
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one STOP two\"}}</tool_call>"));
  Json body = OllamaBody();
  body["options"]["stop"] = {"STOP"};
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    auto reply = server.Post("/api/chat", body);
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->body().find("tool_calls"), std::string::npos) << reply->body();
    EXPECT_NE(reply->body().find("\"done\":true"), std::string::npos);
  }
}

TEST(Ollama, GenerateTagsAndShow) {
  TestServer server(Reciting("hello"));
  const Json body = {{"model", "tiny"}, {"prompt", "x"}, {"stream", false}};
  EXPECT_EQ(server.Call("/api/generate", body)["response"], "hello");
  EXPECT_EQ(server.Get("/api/tags")["models"][0]["name"], "tiny");
  const Json shown = server.Call("/api/show", {{"model", "tiny:latest"}});
  EXPECT_EQ(shown["capabilities"], Json({"completion", "tools", "thinking"}));
  EXPECT_TRUE(server.Call("/api/show", {{"model", "other"}}, 404)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/chat", Json::object(), 400)["error"].is_string());
  const Json raw = {{"prompt", "x"}, {"raw", true}};
  EXPECT_NE(server.Call("/api/generate", raw, 400)["error"].get<std::string>().find("raw"),
            std::string::npos);
}

TEST(Ollama, Embeddings) {
  TestServer server;
  Json answer = server.Call("/api/embed",
                            {{"model", "tiny:latest"}, {"input", {"aab", "c"}}, {"dimensions", 3}});
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["prompt_eval_count"], 4);
  ASSERT_EQ(answer["embeddings"].size(), 2u);
  EXPECT_EQ(answer["embeddings"][1], Json({0.0, 0.0, 1.0}));
  EXPECT_EQ(server.Call("/api/embed", {{"input", "c"}})["embeddings"].size(), 1u);
  EXPECT_EQ(server.Call("/api/embeddings", {{"prompt", "b"}})["embedding"],
            Json({0.0, 1.0, 0.0, 0.0}));
  // What does not fit is cut off at the end, unless that is refused.
  Json body = {{"input", "b" + std::string(256, 'c')}};
  EXPECT_GT(server.Call("/api/embed", body)["embeddings"][0][1], 0.0);
  body["truncate"] = false;
  EXPECT_TRUE(server.Call("/api/embed", body, 400)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/embed", {{"input", 5}}, 400)["error"].is_string());
  EXPECT_TRUE(server.Call("/api/embeddings", {{"prompt", ""}}, 400)["error"].is_string());
}

Json OllamaChat(const std::string& body, OllamaRoute route = OllamaRoute::kGenerate) {
  const auto parsed = ReadOllamaRequest(body, {.route = route});
  if (const auto* error = std::get_if<ApiError>(&parsed)) return {{"error", error->message}};
  return Json(std::get<OllamaRequest>(parsed).chat.chat);
}

std::string OllamaRefusal(TestServer& server, const char* path, const Json& body) {
  return server.Call(path, body, 400)["error"].get<std::string>();
}

TEST(Ollama, IntegersMayBeWrittenAsFloats) {
  const Json chat = OllamaChat(R"({"prompt": "x", "options": {"num_predict": 2.0, "top_k": 40.0,
      "seed": 42.0, "temperature": 0, "min_p": null, "stop": "a"}})");
  EXPECT_EQ(chat["max_tokens"].dump(), "2");
  EXPECT_EQ(chat["top_k"].dump(), "40");
  EXPECT_EQ(chat["seed"].dump(), "42");
  EXPECT_FALSE(chat.contains("min_p"));
  for (const char* unlimited : {"-1", "-2", "-1.0"}) {
    const std::string body = R"({"prompt": "x", "options": {"num_predict": )";
    EXPECT_FALSE(OllamaChat(body + unlimited + "}}").contains("max_tokens")) << unlimited;
  }
  TestServer server;
  Json body = {{"prompt", "x"}, {"stream", false}, {"options", {{"num_predict", 2.0}}}};
  EXPECT_EQ(server.Call("/api/generate", body)["eval_count"], 2);
}

TEST(Ollama, ErrorsNameTheFieldsOfTheClient) {
  TestServer server;
  const auto option = [&](const char* name, const Json& value) {
    return OllamaRefusal(server, "/api/generate", {{"prompt", "x"}, {"options", {{name, value}}}});
  };
  const std::string integer =
      "options.num_predict must be an integer of at least 1 (and below 2^31), got ";
  EXPECT_EQ(option("num_predict", 2.5), integer + "2.5");
  EXPECT_EQ(option("num_predict", 0), integer + "0");
  EXPECT_EQ(option("num_predict", -3), integer + "-3");
  EXPECT_EQ(option("num_predict", "2"), integer + "\"2\"");
  EXPECT_EQ(option("num_predict", 1e300).find("options.num_predict must"), 0u);
  EXPECT_EQ(option("repeat_penalty", 0).find("options.repeat_penalty must"), 0u);
  EXPECT_EQ(option("seed", 1.5), "options.seed must be an integer from -2^63 to 2^64 - 1, got 1.5");
  EXPECT_EQ(option("stop", 5), "options.stop must be a string or an array of strings, got 5");
  EXPECT_EQ(option("temperature", "hot"), "options.temperature must be a number, got \"hot\"");
  const auto field = [&](const char* name, const Json& value) {
    return OllamaRefusal(server, "/api/generate", {{"prompt", "x"}, {name, value}});
  };
  EXPECT_EQ(field("format", "xml"), "format must be \"json\" or a JSON schema, got \"xml\"");
  EXPECT_EQ(field("format", {{"type", "what"}}).find("format cannot be used"), 0u);
  EXPECT_EQ(field("think", "much"),
            "think must be true, false, \"low\", \"medium\" or \"high\", got \"much\"");
  EXPECT_EQ(field("keep_alive", "soon"),
            "keep_alive must be a number of seconds or a duration such as \"5m\", got \"soon\"");
  EXPECT_EQ(field("options", {1}), "options must be an object, got [1]");
  EXPECT_EQ(field("template", "{{ .Prompt }}").find("template is not supported"), 0u);
  EXPECT_EQ(OllamaRefusal(server, "/api/embeddings", {{"prompt", ""}}), "prompt has no tokens");
  const Json image = {{"messages", {{{"role", "user"}, {"content", "x"}, {"images", {"AA=="}}}}}};
  EXPECT_EQ(OllamaRefusal(server, "/api/chat", image),
            "messages[0].images: images are not supported");
  const Json system = {{"prompt", std::string(100'000, 'x')}};
  EXPECT_NE(OllamaRefusal(server, "/api/generate", system).find("prompt"), std::string::npos);
}

TEST(Ollama, MessagesKeepTheirThinkingAndToolNames) {
  const Json chat = OllamaChat(R"({"messages": [
      {"role": "user", "content": "a", "images": []},
      {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [
        {"id": "c", "function": {"index": 0, "name": "f", "arguments": {"z": 1, "a": 2}}}]},
      {"role": "tool", "content": "r", "tool_name": "f", "tool_call_id": "c"}]})",
                               OllamaRoute::kChat);
  EXPECT_EQ(chat["messages"], Json::parse(R"([
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": "", "reasoning_content": "t", "tool_calls": [
        {"id": "c", "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}}]},
      {"role": "tool", "content": "r", "name": "f", "tool_call_id": "c"}])"));
}

TEST(Ollama, ThinkingIsNamedIfTheModelDoesNotReason) {
  TestServer server;
  const std::vector<std::pair<Json, std::string>> cases = {
      {true, "think"}, {"low", "think"}, {false, ""}, {nullptr, ""}};
  for (const auto& [think, ignored] : cases) {
    auto reply = server.Post(
        "/api/generate",
        {{"prompt", "x"}, {"think", think}, {"stream", false}, {"options", {{"num_predict", 1}}}});
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 200) << reply->body();
    EXPECT_EQ(reply->Header("x-millrace-ignored"), ignored) << think;
  }
}

TEST(Ollama, ModelsAreLoadedAndStayLoaded) {
  TestServer server;
  const auto load = [&](const char* path, Json body) {
    auto reply = server.Post(path, body);
    EXPECT_EQ(reply->status(), 200) << reply->body();
    Json answer = Json::parse(reply->body());
    answer["ignored"] = reply->Header("x-millrace-ignored");
    EXPECT_EQ(answer["done"], true);
    return answer;
  };
  Json answer = load("/api/generate", {{"model", "tiny"}});
  EXPECT_EQ(answer["done_reason"], "load");
  EXPECT_EQ(answer["response"], "");
  EXPECT_EQ(answer["ignored"], "");
  answer =
      load("/api/chat", {{"model", "tiny"}, {"messages", Json::array()}, {"keep_alive", "1h30m"}});
  EXPECT_EQ(answer["done_reason"], "load");
  EXPECT_EQ(answer["message"], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(answer["ignored"], "keep_alive");
  for (const Json& zero : {Json(0), Json("0"), Json("0s"), Json("0m0s")}) {
    answer = load("/api/generate", {{"model", "tiny"}, {"prompt", ""}, {"keep_alive", zero}});
    EXPECT_EQ(answer["done_reason"], "unload") << zero;
    EXPECT_EQ(answer["ignored"], "keep_alive");
  }
  EXPECT_EQ(load("/api/generate", {{"model", "tiny"}, {"keep_alive", -1}})["done_reason"], "load");
  EXPECT_EQ(server.Get("/api/ps")["models"].size(), 1u);
  EXPECT_TRUE(server.Call("/api/generate", {{"model", "other"}}, 404)["error"].is_string());
}

TEST(Ollama, WhatManagesModelsIsRefusedInItsForm) {
  TestServer server;
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy"}) {
    const Json error = server.Call(path, {{"model", "x"}}, 501)["error"];
    EXPECT_EQ(error.get<std::string>().find(std::string("POST ") + path), 0u);
  }
  EXPECT_EQ(server.Start("DELETE", "/api/delete", R"({"model": "x"})")->status(), 501);
  EXPECT_EQ(server.Start("POST", "/api/blobs/sha256:1", "{}")->status(), 501);
  EXPECT_EQ(server.Start("HEAD", "/api/blobs/sha256:1")->status(), 404);
}

TEST(Ollama, TheGreetingNeedsNoKey) {
  TestServerOptions options;
  options.service.api_keys = ApiKeys::Create({"k"}).value();
  TestServer server(std::move(options));
  for (const char* method : {"GET", "HEAD"}) {
    auto reply = server.Start(method, "/");
    EXPECT_EQ(reply->status(), 200);
    EXPECT_EQ(reply->body(), "Ollama is running");  // net leaves it out for HEAD
  }
  EXPECT_EQ(server.Start("GET", "/api/ps")->status(), 401);
}

TEST(Ollama, ModelsAreDescribed) {
  TestServer server(Reciting("x"));
  const Json listed = server.Get("/api/tags")["models"][0];
  const Json running = server.Get("/api/ps")["models"][0];
  for (const Json& model : {listed, running}) {
    EXPECT_EQ(model["digest"].get<std::string>().size(), 64u);
    EXPECT_EQ(model["digest"], listed["digest"]);
    EXPECT_TRUE(model["size"].is_number_integer());
    EXPECT_TRUE(model["details"]["families"].is_array());
    for (const char* field : {"format", "family", "parameter_size", "quantization_level"}) {
      EXPECT_TRUE(model["details"][field].is_string()) << field;
    }
  }
  EXPECT_EQ(listed["modified_at"].get<std::string>().size(), 20u);
  EXPECT_EQ(running["context_length"], 1024);
  const Json shown = server.Call("/api/show", {{"name", "tiny"}, {"model", ""}});
  EXPECT_NE(shown["template"].get<std::string>().find("messages"), std::string::npos);
  EXPECT_EQ(shown["model_info"]["context_length"], 1024);
}

TEST(Ollama, DurationsAddUp) {
  TestServer server(Reciting("hello"));
  Json body = {{"model", "tiny"}, {"prompt", "x"}, {"stream", false}};
  Json answer = server.Call("/api/generate", body);
  body["stream"] = true;
  auto reply = server.Post("/api/generate", body);
  ASSERT_TRUE(reply->WaitDone());
  std::istringstream in(reply->body());
  std::string line, last;
  while (std::getline(in, line)) last = line;
  for (const Json& one : {answer, Json::parse(last)}) {
    int64_t parts = 0;
    for (const char* name : {"load_duration", "prompt_eval_duration", "eval_duration"}) {
      EXPECT_GE(one[name].get<int64_t>(), 0) << name;
      parts += one[name].get<int64_t>();
    }
    EXPECT_GT(one["prompt_eval_duration"].get<int64_t>() + one["eval_duration"].get<int64_t>(), 0);
    EXPECT_GE(one["total_duration"].get<int64_t>() + 1'000, parts);
    EXPECT_GT(one["prompt_eval_count"].get<int>(), 0);
  }
}

TEST(Ollama, LogprobsOfTokens) {
  TestServer server(Reciting("hi"));
  Json body = {{"prompt", "x"}, {"stream", false}, {"logprobs", true}, {"top_logprobs", 1.0}};
  const Json answer = server.Call("/api/generate", body);
  ASSERT_GE(answer["logprobs"].size(), 2u);
  EXPECT_EQ(answer["logprobs"][0]["token"], "h");
  EXPECT_EQ(answer["logprobs"][0]["top_logprobs"].size(), 1u);
  EXPECT_TRUE(answer["logprobs"][0]["logprob"].is_number());
  body["top_logprobs"] = 21;
  EXPECT_EQ(OllamaRefusal(server, "/api/generate", body),
            "top_logprobs must be an integer in [0, 20], got 21");
}

TEST(Ollama, LengthsBeyondTheContextAreLowered) {
  TestServer server;
  const Json body = {{"prompt", "x"}, {"stream", false}, {"options", {{"num_predict", 32000}}}};
  EXPECT_EQ(server.Call("/api/generate", body)["done_reason"], "length");
}

}  // namespace
}  // namespace millrace::serve
