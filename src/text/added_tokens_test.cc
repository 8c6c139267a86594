// What a folder adds to tokenizer.json, with ids and flags as transformers' fast tokenizers give
// them. The byte-level tokenizer has 283 tokens and five added ones, 283 to 287.
#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/testing/source_path.h"
#include "base/testing/temp_folder.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

constexpr TokenId kNext = 288;
constexpr EncodeOptions kNoSpecials{.add_special_tokens = false};

class AddedTokens : public ::testing::Test {
 protected:
  AddedTokens() {
    std::filesystem::copy(SourcePath("src/text/testdata/tokenizers/byte_level/tokenizer.json"),
                          folder_.path());
  }
  void WriteFile(const std::string& name, const Json& value) const {
    std::ofstream(folder_.path() + "/" + name) << value;
  }
  std::shared_ptr<const Tokenizer> Load() const {
    auto loaded = Tokenizer::Load(folder_.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() ? *loaded : nullptr;
  }
  static Json Token(const std::string& content, const Json& more = Json::object()) {
    Json token = {{"content", content},  {"lstrip", false},      {"rstrip", false},
                  {"normalized", false}, {"single_word", false}, {"special", false}};
    token.update(more);
    return token;
  }
  TempFolder folder_;
};

TEST_F(AddedTokens, TheDecoderOfTokenizerConfigAddsTokens) {
  WriteFile("tokenizer_config.json", {{"added_tokens_decoder",
                                       {{"285", Token("<|im_end|>", {{"special", true}})},
                                        {"289", Token("</tool_call>")},
                                        {"288", Token("<tool_call>")}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->IdOf("<tool_call>"), kNext);
  EXPECT_EQ(tokenizer->IdOf("</tool_call>"), kNext + 1);
  EXPECT_EQ(tokenizer->vocab_size(), kNext + 2);
  const auto ids = tokenizer->Encode("<tool_call>the", kNoSpecials).value();
  EXPECT_EQ(ids.front(), kNext);
  EXPECT_FALSE(tokenizer->Token(kNext).special);
  EXPECT_EQ(tokenizer->Decode(ids, true), "<tool_call>the");
}

// A text keeps tokenizer.json's id. A new one gets the next id, whatever the file says, also if the
// stated id belongs to another text or leaves a gap.
TEST_F(AddedTokens, TokenizerJsonDecidesIds) {
  WriteFile("tokenizer_config.json", {{"added_tokens_decoder",
                                       {{"284", Token("<|im_end|>", {{"special", true}})},
                                        {"7", Token("<new>")},
                                        {"300", Token("<far>")}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->IdOf("<|im_end|>"), 285);
  EXPECT_EQ(tokenizer->IdOf("<|im_start|>"), 284);
  EXPECT_EQ(tokenizer->IdOf("<new>"), kNext);
  EXPECT_EQ(tokenizer->IdOf("<far>"), kNext + 1);
  EXPECT_NE(tokenizer->Token(7).raw, "<new>");
}

TEST_F(AddedTokens, TokenizerConfigDecidesFlags) {
  const auto plain = Load();
  EXPECT_FALSE(plain->Token(286).special);  // <think>
  const size_t kept = plain->Encode("the <think> the", kNoSpecials)->size();
  WriteFile("tokenizer_config.json",
            {{"added_tokens_decoder",
              {{"286", Token("<think>", {{"special", true}, {"lstrip", true}})}}}});
  const auto tokenizer = Load();
  EXPECT_TRUE(tokenizer->Token(286).special);
  const EncodeOptions parse{.add_special_tokens = false, .parse_special = true};
  EXPECT_EQ(tokenizer->Encode("the <think> the", parse)->size(), kept - 1);
}

TEST_F(AddedTokens, TokensWithARoleAreSpecial) {
  WriteFile("tokenizer_config.json",
            {{"eos_token", "<think>"},
             {"pad_token", {{"content", "[PAD]"}, {"lstrip", false}}},
             {"additional_special_tokens", {"<|a|>", {{"content", "<|b|>"}}}},
             {"extra_special_tokens", {{"image_token", "<|image|>"}}},
             {"added_tokens_decoder", {{"286", Token("<think>")}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->eos(), 286);
  EXPECT_TRUE(tokenizer->Token(286).special);
  TokenId next = kNext;
  for (const char* text : {"[PAD]", "<|a|>", "<|b|>", "<|image|>"}) {
    EXPECT_EQ(tokenizer->IdOf(text), next) << text;
    EXPECT_TRUE(tokenizer->Token(next++).special) << text;
  }
}

// Folders that older tools wrote.
TEST_F(AddedTokens, OlderFilesAddTokensWithoutADecoder) {
  WriteFile("tokenizer_config.json", {{"eos_token", "<|im_end|>"}});
  WriteFile("added_tokens.json", {{"<tool>", 289}, {"<|x|>", 288}, {"<|im_end|>", 285}});
  WriteFile("special_tokens_map.json", {{"additional_special_tokens", {"<|x|>"}}});
  auto tokenizer = Load();
  EXPECT_EQ(tokenizer->IdOf("<|x|>"), kNext);
  EXPECT_TRUE(tokenizer->Token(kNext).special);
  EXPECT_EQ(tokenizer->IdOf("<tool>"), kNext + 1);
  EXPECT_FALSE(tokenizer->Token(kNext + 1).special);
  EXPECT_EQ(tokenizer->IdOf("<|im_end|>"), 285);
  // Beside a decoder they do not count.
  WriteFile("tokenizer_config.json", {{"added_tokens_decoder", Json::object()}});
  tokenizer = Load();
  EXPECT_EQ(tokenizer->IdOf("<tool>"), std::nullopt);
  EXPECT_EQ(tokenizer->IdOf("<|x|>"), std::nullopt);
}

TEST_F(AddedTokens, MalformedOnesAreRefusedWithTheFile) {
  const Json bad[] = {
      {{"added_tokens_decoder", {{"x", Token("<a>")}}}},
      {{"added_tokens_decoder", {{"-1", Token("<a>")}}}},
      {{"added_tokens_decoder", {{"288", 5}}}},
      {{"added_tokens_decoder", {{"288", Token("<a>", {{"lstrip", "yes"}})}}}},
      {{"added_tokens_decoder", {"<a>"}}},
      {{"additional_special_tokens", "<a>"}},
      {{"pad_token", 5}},
  };
  for (const Json& config : bad) {
    WriteFile("tokenizer_config.json", config);
    const Status status = Tokenizer::Load(folder_.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << config;
    EXPECT_NE(status.message().find("tokenizer_config.json"), std::string::npos)
        << status.message();
  }
  std::filesystem::remove(folder_.path() + "/tokenizer_config.json");
  WriteFile("added_tokens.json", {{"<a>", "288"}});
  EXPECT_NE(Tokenizer::Load(folder_.path()).status().message().find("added_tokens.json"),
            std::string::npos);
}

TEST_F(AddedTokens, ThousandsAreAddedAtOnce) {
  Json decoder = Json::object();
  for (int i = 0; i < 20'000; ++i)
    decoder[std::to_string(kNext + i)] = Token(std::to_string(i) + "<>");
  WriteFile("tokenizer_config.json", {{"added_tokens_decoder", decoder}});
  EXPECT_EQ(Load()->vocab_size(), kNext + 20'000);
}

}  // namespace
}  // namespace millrace::text
