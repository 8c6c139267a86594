#include "model/config.h"

#include <gtest/gtest.h>

#include "model/architecture.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "model/testing_messages.h"

namespace millrace::model {
namespace {

Json LlamaConfig() { return *ShapeConfig("llama-160m"); }

std::string DecoderError(const Json& config) {
  Result<std::unique_ptr<Decoder>> decoder = NewDecoder(config, "config.json");
  EXPECT_FALSE(decoder.ok()) << DumpJson(config);
  return decoder.ok() ? "" : decoder.status().message();
}

TEST(Config, EveryShapeIsAValidModel) {
  for (const std::string& name : ShapeNames()) {
    Result<std::unique_ptr<Decoder>> decoder = NewDecoder(*ShapeConfig(name), name);
    ASSERT_TRUE(decoder.ok()) << decoder.status().ToString();
    EXPECT_GT((*decoder)->dims().spec.num_layers, 0) << name;
  }
}

TEST(Config, UnknownArchitectureNamesTheKnownOnes) {
  Json config = LlamaConfig();
  config["architectures"] = {"FancyForCausalLM"};
  const std::string message = DecoderError(config);
  ExpectPart(message, "\"FancyForCausalLM\" is not known");
  for (const Architecture& a : Architectures()) ExpectPart(message, a.name);
  config["architectures"] = Json::array();
  config["model_type"] = "llama";
  EXPECT_TRUE(NewDecoder(config, "config.json").ok());
  config.erase("model_type");
  ExpectPart(DecoderError(config), "is not known");
}

struct Lie {
  const char* field;
  Json value;
  const char* message;
};

TEST(Config, WrongValuesGiveOneClearLine) {
  const Lie lies[] = {
      {"num_hidden_layers", 1000000000,
       "num_hidden_layers must be a whole number in [1, 1024], got 1000000000"},
      {"num_hidden_layers", 0, "in [1, 1024], got 0"},
      {"num_hidden_layers", -1, "got -1"},
      {"num_hidden_layers", 1.5, "got 1.5"},
      {"num_hidden_layers", "12", "got \"12\""},
      {"num_hidden_layers", nullptr, "num_hidden_layers is missing"},
      {"num_hidden_layers", Json::array({1, 2}), "got [1,2]"},
      {"hidden_size", 1ull << 62, "hidden_size must be"},
      {"hidden_size", 769, "hidden_size 769 is not a multiple of num_attention_heads 12"},
      {"num_attention_heads", 1e300, "num_attention_heads must be"},
      {"num_key_value_heads", 5,
       "num_attention_heads 12 is not a multiple of num_key_value_heads 5"},
      {"head_dim", 100000, "head_dim must be"},
      {"intermediate_size", nullptr, "intermediate_size is missing"},
      {"intermediate_size", 1 << 30, "intermediate_size must be"},
      {"vocab_size", 2000000000, "vocab_size must be"},
      {"max_position_embeddings", 2000000000, "max_position_embeddings must be"},
      {"rms_norm_eps", "x", "rms_norm_eps must be a number"},
      {"tie_word_embeddings", 1, "tie_word_embeddings must be true or false"},
      {"hidden_act", "tanhshrink", "hidden_act \"tanhshrink\" is not known; known: relu"},
      {"architectures", "LlamaForCausalLM", "architectures must be a list of strings"},
      {"rope_scaling", 3, "rope_scaling must be an object"},
      {"rope_scaling",
       {{"type", "longrope"}},
       "rope_type \"longrope\" is not supported; supported: default"},
      {"rope_scaling", {{"type", "linear"}}, "rope_scaling: factor is missing"},
      {"rope_scaling",
       {{"type", "linear"}, {"factor", 0.5}},
       "factor must be a number in [1, 10000], got 0.5"},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor is missing"},
      {"rope_parameters", {{"rope_theta", 0}}, "rope_theta must be"},
      {"rope_theta", -5, "rope_theta must be"},
      {"partial_rotary_factor", 0.015, "rotary part"},
  };
  for (const Lie& lie : lies) {
    Json config = LlamaConfig();
    config[lie.field] = lie.value;
    const std::string message = DecoderError(config);
    ExpectPart(message, lie.message);
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_LT(message.size(), 300u);
  }
}

TEST(Config, ReadsWholeNumbersWrittenAsFractions) {
  Json config = LlamaConfig();
  config["num_hidden_layers"] = 4.0;
  EXPECT_EQ((*NewDecoder(config, "x"))->dims().spec.num_layers, 4);
}

TEST(Config, ContextAfterScaling) {
  Json config = LlamaConfig();  // 2048 positions
  const auto positions = [&](Json scaling) {
    config["rope_scaling"] = std::move(scaling);
    return (*NewDecoder(config, "x"))->dims().spec.max_position;
  };
  EXPECT_EQ(positions(nullptr), 2048);
  EXPECT_EQ(positions({{"type", "linear"}, {"factor", 4.0}}), 8192);
  EXPECT_EQ(positions({{"type", "dynamic"}, {"factor", 2.0}}), 4096);
  EXPECT_EQ(
      positions(
          {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}),
      2048);
  EXPECT_EQ(positions({{"rope_type", "yarn"}, {"original_max_position_embeddings", 512}}), 2048);
  EXPECT_EQ(positions({{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 256}}),
            2048);
}

TEST(Config, RefusesDoubleKeysAndNonObjects) {
  EXPECT_TRUE(ParseConfig(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})").ok());
  for (const char* text : {"", "[]", "3", "null", "{", R"({"a":1,"a":2})", R"({"b":{"a":1,"a":2}})",
                           "{\"a\":\"\xff\"}"}) {
    EXPECT_FALSE(ParseConfig(text).ok()) << text;
  }
  EXPECT_FALSE(ParseConfig(std::string(100000, '[')).ok());
}

TEST(Config, FolderRules) {
  TestFolder folder;
  EXPECT_EQ(ReadConfig(folder.path()).status().code(), StatusCode::kNotFound);
  folder.Write("config.json", R"({"auto_map":{"AutoModel":"evil.Model"}})");
  EXPECT_TRUE(ReadConfig(folder.path()).ok());
  folder.Write("config.json", R"({"quantization_config":{"bits":4}})");
  EXPECT_EQ(ReadConfig(folder.path()).status().code(), StatusCode::kUnimplemented);
  folder.Write("config.json", std::string(kConfigBytesMax + 1, ' '));
  EXPECT_EQ(ReadConfig(folder.path()).status().code(), StatusCode::kTooLarge);
}

TEST(GenerationConfig, EosFromEitherFileAsNumberOrList) {
  const Json config = {{"eos_token_id", 7}, {"bos_token_id", 1}};
  Json generation = Json::object();
  const auto parse = [&](const Json* g) { return ParseGenerationConfig(g, config, 10, "d/g"); };
  EXPECT_EQ(parse(nullptr)->eos, (std::vector<TokenId>{7}));
  EXPECT_EQ(parse(&generation)->eos, (std::vector<TokenId>{7}));
  generation["eos_token_id"] = {2, 3, 2};
  EXPECT_EQ(parse(&generation)->eos, (std::vector<TokenId>{2, 3}));
  generation["eos_token_id"] = 4;
  EXPECT_EQ(parse(&generation)->eos, (std::vector<TokenId>{4}));
  for (const Json& bad :
       {Json("x"), Json({1, nullptr}), Json(1.5), Json(true), Json(std::vector<int>(100, 1))}) {
    generation["eos_token_id"] = bad;
    EXPECT_FALSE(parse(&generation).ok()) << bad;
  }
}

// The model cannot generate them, so they cannot end an answer.
TEST(GenerationConfig, EosBeyondTheVocabularyIsLeftOutAndNoted) {
  const Json config = {{"eos_token_id", 7}};
  Json generation = {{"eos_token_id", {2, 10, -1}}};
  auto parsed = ParseGenerationConfig(&generation, config, 10, "d/g");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->eos, (std::vector<TokenId>{2}));
  ASSERT_EQ(parsed->notes.size(), 2u);
  ExpectPart(parsed->notes[0], "d/g: eos_token_id 10 ends no answer");
  generation["eos_token_id"] = 32000;
  EXPECT_EQ(ParseGenerationConfig(&generation, config, 10, "d/g")->eos, (std::vector<TokenId>{7}));
  const Json wrong = {{"eos_token_id", "x"}};
  ExpectPart(ParseGenerationConfig(nullptr, wrong, 10, "d/g").status().message(), "d/config.json");
}

TEST(GenerationConfig, ValuesThatNoRequestMayHaveAreReadByTheirMeaning) {
  const Json config = Json::object();
  Json generation = {{"top_p", 0}, {"top_k", -1}, {"do_sample", false}, {"temperature", 0.5}};
  auto parsed = ParseGenerationConfig(&generation, config, 10, "d/g");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->top_p, kTopPLeast);
  EXPECT_EQ(parsed->top_k, 0);
  EXPECT_EQ(parsed->temperature, 0.5);
  ASSERT_EQ(parsed->notes.size(), 2u);
  ExpectPart(parsed->notes[0], "top_p 0 leaves the likeliest token");
  ExpectPart(parsed->notes[1], "do_sample false is not a default of requests");
  generation = {{"top_k", 2147483647}, {"min_p", nullptr}, {"temperature", 0.0}};
  parsed = ParseGenerationConfig(&generation, config, 10, "d/g");
  EXPECT_EQ(parsed->top_k, 2147483647);
  EXPECT_FALSE(parsed->min_p);
  EXPECT_TRUE(parsed->notes.empty());
}

TEST(GenerationConfig, DefaultsAndTheirRanges) {
  TestFolder folder;
  const Json config = Json::object();
  Result<GenerationConfig> absent = ReadGenerationConfig(folder.path(), config, 10);
  ASSERT_TRUE(absent.ok());
  EXPECT_TRUE(absent->eos.empty());
  EXPECT_FALSE(absent->temperature);
  folder.Write(
      "generation_config.json",
      R"({"temperature":0.6,"top_p":0.9,"top_k":50,"repetition_penalty":1.05,"do_sample":true})");
  Result<GenerationConfig> given = ReadGenerationConfig(folder.path(), config, 10);
  ASSERT_TRUE(given.ok()) << given.status().ToString();
  EXPECT_EQ(given->temperature, 0.6);
  EXPECT_EQ(given->top_p, 0.9);
  EXPECT_EQ(given->top_k, 50);
  EXPECT_EQ(given->repetition_penalty, 1.05);
  for (const char* bad :
       {R"({"temperature":-1})", R"({"temperature":1e9})", R"({"temperature":"0.7"})",
        R"({"temperature":NaN})", R"({"top_p":2})", R"({"top_p":true})", R"({"top_k":-3})",
        R"({"top_k":"x"})", R"({"top_k":1.5})", R"({"min_p":2})", R"({"repetition_penalty":0})",
        R"({"repetition_penalty":101})", R"({"do_sample":"no"})", "[", "[]", ""}) {
    folder.Write("generation_config.json", bad);
    const Status status = ReadGenerationConfig(folder.path(), config, 10).status();
    EXPECT_FALSE(status.ok()) << bad;
    ExpectPart(status.message(), "generation_config.json");
  }
}

}  // namespace
}  // namespace millrace::model
