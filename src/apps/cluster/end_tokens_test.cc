#include "apps/cluster/end_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/testing/source_path.h"
#include "base/testing/temp_folder.h"

namespace millrace::apps {
namespace {

// The byte-level tokenizer of text: 283 is <|endoftext|>, 285 is <|im_end|>.
constexpr TokenId kEndOfText = 283, kImEnd = 285;

LocalModel ModelWith(const std::string& tokenizer_config, const std::string& chat_template) {
  TempFolder folder;
  std::filesystem::copy(SourcePath("src/text/testdata/tokenizers/byte_level/tokenizer.json"),
                        folder.path());
  std::ofstream(folder.path() + "/tokenizer_config.json") << tokenizer_config;
  LocalModel model;
  model.spec.vocab_size = 300;
  model.tokenizer = text::Tokenizer::Load(folder.path()).value();
  if (chat_template.empty()) return model;
  text::TokenizerConfig config;
  config.chat_templates = {{text::kDefaultTemplateName, chat_template}};
  model.chat_template =
      text::ChatTemplate::FromConfig(config, model.tokenizer->special_tokens()).value();
  return model;
}

TEST(EndTokensOfFolder, AreThoseOfEverySource) {
  LocalModel model =
      ModelWith(R"({"eos_token": "<|endoftext|>"})",
                "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}");
  model.generation.eos = {7, 9};
  EXPECT_EQ(EndTokens(model), (std::vector<TokenId>{7, 9, kEndOfText, kImEnd}));
  EXPECT_NE(EndTokensText(model).find("<|endoftext|> (283), <|im_end|> (285)"), std::string::npos)
      << EndTokensText(model);
  model.generation.eos = {kImEnd};
  EXPECT_EQ(EndTokens(model), (std::vector<TokenId>{kImEnd, kEndOfText}));
}

TEST(EndTokensOfFolder, AreTokensOfTheModel) {
  LocalModel model = ModelWith(R"({"eos_token": "<|im_end|>"})", "");
  model.spec.vocab_size = kImEnd;  // 285 has no row
  EXPECT_TRUE(EndTokens(model).empty());
  EXPECT_NE(EndTokensText(model).find("none known"), std::string::npos);
  model.generation.eos = {kEndOfText};
  EXPECT_EQ(EndTokens(model), (std::vector<TokenId>{kEndOfText}));
}

TEST(EndTokensOfFolder, WithoutATokenizerAreThoseOfTheModel) {
  LocalModel model;
  model.spec.vocab_size = 10;
  model.generation.eos = {3};
  EXPECT_EQ(EndTokens(model), (std::vector<TokenId>{3}));
}

TEST(PoolingOfFolder, IsNotedUnlessItIsThatOfRequests) {
  const TempFolder folder;
  const auto note = [&](const std::string& text) {
    std::filesystem::create_directory(folder.path() + "/1_Pooling");
    std::ofstream(folder.path() + "/1_Pooling/config.json") << text;
    return PoolingNote(folder.path());
  };
  EXPECT_EQ(PoolingNote(folder.path()), "");
  EXPECT_EQ(note(R"({"word_embedding_dimension": 8, "pooling_mode_lasttoken": true,
                     "pooling_mode_mean_tokens": false})"),
            "");
  EXPECT_NE(note(R"({"pooling_mode_mean_tokens": true})").find(R"(send "pooling": "mean")"),
            std::string::npos);
  EXPECT_NE(note(R"({"pooling_mode": "mean"})").find(R"(send "pooling": "mean")"),
            std::string::npos);
  for (const char* other :
       {R"({"pooling_mode_cls_token": true})",
        R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true})"}) {
    EXPECT_NE(note(other).find("not those"), std::string::npos) << other;
  }
  EXPECT_NE(note("[").find("not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace millrace::apps
