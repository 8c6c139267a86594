// The routes that make vectors, over a stage whose vectors are known.
#include "serve/generation/vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

Json Embed(TestServer& server, Json body, int status = 200) {
  return server.Call("/v1/embeddings", body, status);
}

std::vector<float> VectorOf(const Json& answer, size_t index = 0) {
  return answer["data"][index]["embedding"].get<std::vector<float>>();
}

TEST(Vectors, AreCutAndThenNormalized) {
  const std::vector<float> vector = {3, 4, 12};
  EXPECT_EQ(ShapeVector(vector, {}, false), vector);
  EXPECT_EQ(ShapeVector(vector, 2, false), (std::vector<float>{3, 4}));
  EXPECT_EQ(ShapeVector(vector, 2, true), (std::vector<float>{0.6f, 0.8f}));
  EXPECT_EQ(ShapeVector(vector, {}, true), (std::vector<float>{3.0f / 13, 4.0f / 13, 12.0f / 13}));
  EXPECT_EQ(ShapeVector({0, 0}, {}, true), (std::vector<float>{0, 0}));
  EXPECT_EQ(ShapeVector(vector, 9, false), vector);
}

TEST(Vectors, Base64IsTheBytesOfTheNumbers) {
  EXPECT_EQ(Base64Of(std::vector<float>{1.0f}), "AACAPw==");
  EXPECT_EQ(Base64Of(std::vector<float>{1.0f, -2.0f, 0.5f}), "AACAPwAAAMAAAAA/");
  EXPECT_EQ(Base64Of({}), "");
}

TEST(Embeddings, OneTextIsOneVector) {
  TestServer server;
  const Json answer = Embed(server, {{"input", "aab"}, {"model", "tiny"}, {"user", "me"}});
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 3}, {"total_tokens", 3}}));
  ASSERT_EQ(answer["data"].size(), 1u);
  EXPECT_EQ(answer["data"][0]["object"], "embedding");
  EXPECT_EQ(answer["data"][0]["index"], 0);
  const double length = std::sqrt(5.0);
  EXPECT_EQ(VectorOf(answer), (std::vector<float>{static_cast<float>(2 / length),
                                                  static_cast<float>(1 / length), 0, 0}));
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Embeddings, ManyInputsKeepTheirOrder) {
  TestServer server({.max_waiting = 600});
  Json input = Json::array();
  for (int i = 0; i < 512; ++i) input.push_back(std::string(static_cast<size_t>(1 + i % 7), 'a'));
  const Json answer = Embed(server, {{"input", input}, {"normalize", false}});
  ASSERT_EQ(answer["data"].size(), 512u);
  for (size_t i = 0; i < 512; ++i) {
    EXPECT_EQ(answer["data"][i]["index"], i);
    EXPECT_EQ(VectorOf(answer, i)[0], static_cast<float>(1 + i % 7));
  }
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Embeddings, TokensAreInputToo) {
  TestServer server;
  EXPECT_EQ(Embed(server, {{"input", {97, 98, 98}}})["data"],
            Embed(server, {{"input", "abb"}})["data"]);
  const Json two =
      Embed(server, {{"input", Json::parse("[[97], [98, 99]]")}, {"normalize", false}});
  EXPECT_EQ(VectorOf(two, 0), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(VectorOf(two, 1), (std::vector<float>{0, 1, 1, 0}));
}

TEST(Embeddings, PoolingDimensionsAndBase64) {
  TestServer server;
  Json body = {{"input", "aab"}, {"pooling", "mean"}, {"normalize", false}};
  EXPECT_EQ(VectorOf(Embed(server, body)), (std::vector<float>{2, 1, 0, 1}));
  body["dimensions"] = 2;
  EXPECT_EQ(VectorOf(Embed(server, body)), (std::vector<float>{2, 1}));
  body["encoding_format"] = "base64";
  EXPECT_EQ(Embed(server, body)["data"][0]["embedding"], Base64Of(std::vector<float>{2, 1}));
}

TEST(Embeddings, TruncationKeepsTheEndOrTheBeginning) {
  TestServer server;
  Json body = {{"input", "aabbb"}, {"normalize", false}, {"truncate_prompt_tokens", 3}};
  Json answer = Embed(server, body);
  EXPECT_EQ(VectorOf(answer), (std::vector<float>{0, 3, 0, 0}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  body["truncation_side"] = "right";
  EXPECT_EQ(VectorOf(Embed(server, body)), (std::vector<float>{2, 1, 0, 0}));
  body = {{"input", std::string(400, 'a')}, {"normalize", false}, {"truncate_prompt_tokens", -1}};
  answer = Embed(server, body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 256) << "the model's length";
  body["input"] = std::string(100'000, 'a');
  answer = Embed(server, body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 256) << "of a text whose bytes alone are too many";
}

TEST(Embeddings, TheContextIsWholeAndItsOverflowHasTheNumbers) {
  TestServer server;
  Embed(server, {{"input", std::string(256, 'a')}});
  const Json error = Embed(server, {{"input", {"a", std::string(257, 'a')}}}, 400)["error"];
  EXPECT_EQ(error["param"], "input");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const std::string message = error["message"];
  for (const char* part : {"256", "257", "input[1]"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

struct BadBody {
  const char* path;
  const char* body;
  const char* param;
};

TEST(Embeddings, BadBodiesNameTheField) {
  TestServer server;
  const BadBody bodies[] = {
      {"/v1/embeddings", "{}", "input"},
      {"/v1/embeddings", R"({"input": []})", "input"},
      {"/v1/embeddings", R"({"input": ""})", "input"},
      {"/v1/embeddings", R"({"input": ["a", ""]})", "input"},
      {"/v1/embeddings", R"({"input": [[]]})", "input"},
      {"/v1/embeddings", R"({"input": [[97], "a"]})", "input"},
      {"/v1/embeddings", R"({"input": ["a", 97]})", "input"},
      {"/v1/embeddings", R"({"input": [97, 261]})", "input"},
      {"/v1/embeddings", R"({"input": [-1]})", "input"},
      {"/v1/embeddings", R"({"input": {"text": "a"}})", "input"},
      {"/v1/embeddings", R"({"input": 5})", "input"},
      {"/v1/embeddings", R"({"input": "a", "messages": [{"role": "user"}]})", "messages"},
      {"/v1/embeddings", R"({"input": "a", "encoding_format": "int8"})", "encoding_format"},
      {"/v1/embeddings", R"({"input": "a", "encoding_format": 5})", "encoding_format"},
      {"/v1/embeddings", R"({"input": "a", "dimensions": 0})", "dimensions"},
      {"/v1/embeddings", R"({"input": "a", "dimensions": 5})", "dimensions"},
      {"/v1/embeddings", R"({"input": "a", "dimensions": 1.5})", "dimensions"},
      {"/v1/embeddings", R"({"input": "a", "pooling": "max"})", "pooling"},
      {"/v1/embeddings", R"({"input": "a", "normalize": 1})", "normalize"},
      {"/v1/embeddings", R"({"input": "a", "truncate_prompt_tokens": 0})",
       "truncate_prompt_tokens"},
      {"/v1/embeddings", R"({"input": "a", "truncate_prompt_tokens": -2})",
       "truncate_prompt_tokens"},
      {"/v1/embeddings", R"({"input": "a", "truncate_prompt_tokens": 257})",
       "truncate_prompt_tokens"},
      {"/v1/embeddings", R"({"input": "a", "truncation_side": "middle"})", "truncation_side"},
      {"/v1/embeddings", R"({"input": "a", "embed_dtype": "float16"})", "embed_dtype"},
      {"/v1/embeddings", R"({"input": "a", "add_special_tokens": "no"})", "add_special_tokens"},
      {"/v1/embeddings", R"({"input": "a", "priority": "high"})", "priority"},
      {"/v1/score", R"({"text_2": "a"})", "text_1"},
      {"/v1/score", R"({"text_1": "a"})", "text_2"},
      {"/v1/score", R"({"text_1": [], "text_2": "a"})", "text_1"},
      {"/v1/score", R"({"text_1": "a", "text_2": [5]})", "text_2"},
      {"/v1/score", R"({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})", "text_1"},
      {"/v1/score", R"({"text_1": "a", "text_2": ["b", ""]})", "text_2"},
      {"/v1/rerank", R"({"documents": ["a"]})", "query"},
      {"/v1/rerank", R"({"query": "a"})", "documents"},
      {"/v1/rerank", R"({"query": "a", "documents": []})", "documents"},
      {"/v1/rerank", R"({"query": "a", "documents": "b"})", "documents"},
      {"/v1/rerank", R"({"query": "a", "documents": ["b", {"title": "c"}]})", "documents"},
      {"/v1/rerank", R"({"query": "a", "documents": ["b", {"text": 5}]})", "documents"},
      {"/v1/rerank", R"({"query": "", "documents": ["b"]})", "query"},
      {"/v1/rerank", R"({"query": "a", "documents": ["b"], "top_n": -1})", "top_n"},
      {"/v1/rerank", R"({"query": "a", "documents": ["b"], "return_documents": 1})",
       "return_documents"},
  };
  for (const BadBody& bad : bodies) {
    const auto reply = server.Start("POST", bad.path, bad.body);
    ASSERT_TRUE(reply->WaitDone()) << bad.body;
    EXPECT_EQ(reply->status(), 400) << bad.body;
    EXPECT_EQ(Json::parse(reply->body())["error"]["param"], bad.param) << bad.body;
  }
  Json many = {{"input", Json::array()}};
  for (int i = 0; i < 513; ++i) many["input"].push_back("a");
  EXPECT_EQ(Embed(server, many, 400)["error"]["param"], "input");
  EXPECT_EQ(Embed(server, {{"input", "a"}, {"model", "other"}}, 404)["error"]["param"], "model");
  Embed(server, {{"input", "a"}});
}

TEST(Embeddings, FieldsWithoutEffectAreNamed) {
  TestServer server;
  const auto reply =
      server.Post("/v1/embeddings", {{"input", "a"}, {"user", "me"}, {"unknown", 1}});
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->Header("x-millrace-ignored"), "unknown, user");
}

TEST(Embeddings, AFailureOfOneTextFailsTheRequest) {
  TestServer server;
  const Json error = Embed(server, {{"input", {"a", "\x01", "b"}}}, 500)["error"];
  EXPECT_EQ(error["message"].get<std::string>().find("secret"), std::string::npos);
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Embeddings, AFullQueueRefusesTheWholeRequest) {
  TestServer server({.max_waiting = 4});
  server.gate.Close();
  Json input = Json::array();
  for (int i = 0; i < 500; ++i) input.push_back("a");
  const auto reply = server.Post("/v1/embeddings", {{"input", input}});
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 429);
  server.gate.Open();
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Embeddings, ADisconnectAborts) {
  TestServer server;
  server.gate.Close();
  const auto reply = server.Post("/v1/embeddings", {{"input", {"a", "b"}}});
  reply->Disconnect();
  server.gate.Open();
  EXPECT_TRUE(server.WaitUntilFree());
  EXPECT_EQ(
      server.engine->Stats().scheduler.requests_finished[static_cast<int>(FinishReason::kAbort)],
      2u);
}

TEST(Embeddings, NoneAreTakenWhileDraining) {
  TestServer server;
  server.service->BeginDrain();
  Embed(server, {{"input", "a"}}, 503);
}

TEST(Scores, AreCosines) {
  TestServer server;
  Json answer = server.Call("/v1/score", {{"text_1", "aa"}, {"text_2", {"a", "b", "ab"}}});
  ASSERT_EQ(answer["data"].size(), 3u);
  EXPECT_EQ(answer["data"][0]["object"], "score");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  EXPECT_DOUBLE_EQ(answer["data"][0]["score"], 1);
  EXPECT_DOUBLE_EQ(answer["data"][1]["score"], 0);
  EXPECT_NEAR(answer["data"][2]["score"], std::sqrt(0.5), 1e-7);
  answer = server.Call("/score", {{"text_1", {"a", "b"}}, {"text_2", {"a", "c"}}});
  EXPECT_DOUBLE_EQ(answer["data"][0]["score"], 1);
  EXPECT_DOUBLE_EQ(answer["data"][1]["score"], 0);
}

TEST(Rerank, TheBestComesFirst) {
  TestServer server;
  Json body = {{"query", "a"}, {"documents", {"b", "ab", {{"text", "aaa"}}, "c"}}};
  Json results = server.Call("/v1/rerank", body)["results"];
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0]["index"], 2);
  EXPECT_EQ(results[0]["document"]["text"], "aaa");
  EXPECT_DOUBLE_EQ(results[0]["relevance_score"], 1);
  EXPECT_EQ(results[1]["index"], 1);
  EXPECT_EQ(results[2]["index"], 0) << "equal ones keep their order";
  EXPECT_EQ(results[3]["index"], 3);
  body["top_n"] = 1;
  body["return_documents"] = false;
  results = server.Call("/rerank", body)["results"];
  ASSERT_EQ(results.size(), 1u);
  EXPECT_FALSE(results[0].contains("document"));
  body["top_n"] = 0;
  EXPECT_EQ(server.Call("/v2/rerank", body)["results"].size(), 4u);
}

}  // namespace
}  // namespace millrace::serve
