#include "apps/bench/prompt_texts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/source_path.h"

namespace millrace::apps {
namespace {

constexpr size_t kPrefixTokens = 12;

class PromptTextsTest : public testing::TestWithParam<const char*> {
 protected:
  std::string Folder() const { return SourcePath(GetParam()); }
};

TEST_P(PromptTextsTest, TextsHaveAsManyTokensAsTheirPromptsAndShareTheirBeginnings) {
  const auto tokenizer = *text::Tokenizer::Load(Folder());
  const auto texts = PromptTexts::Load(Folder(), {});
  ASSERT_TRUE(texts.ok()) << texts.status().ToString();
  WorkloadOptions options;
  options.num_prompts = 40;
  options.input_len = 30;
  options.prefix_len = kPrefixTokens;
  options.vocab_size = texts->vocab_size();
  for (const bool special : {false, true}) {
    auto requests = *MakeWorkload(options);
    ASSERT_TRUE(texts->Apply(1, special, requests).ok());
    int exact = 0;
    for (const BenchRequest& request : requests) {
      ASSERT_TRUE(request.prompt_text.has_value());
      EXPECT_TRUE(request.prompt.empty());
      EXPECT_EQ(request.prompt_text->substr(0, kPrefixTokens / 2),
                requests[0].prompt_text->substr(0, kPrefixTokens / 2));
      const auto ids = *tokenizer->Encode(*request.prompt_text, {.add_special_tokens = special});
      exact += ids.size() == 30 + kPrefixTokens ? 1 : 0;
      EXPECT_NEAR(static_cast<double>(ids.size()), 30.0 + kPrefixTokens, 2);
    }
    EXPECT_GE(exact, 36) << special;
    EXPECT_NE(*requests[0].prompt_text, *requests[1].prompt_text);
    auto again = *MakeWorkload(options);
    ASSERT_TRUE(texts->Apply(1, special, again).ok());
    EXPECT_EQ(again[7].prompt_text, requests[7].prompt_text);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, PromptTextsTest,
                         testing::Values("models/demo", "src/text/testdata/tokenizers/byte_level",
                                         "src/text/testdata/tokenizers/byte_fallback"));

TEST(PromptTexts, IdsBelowALimitOnly) {
  const std::string folder = SourcePath("models/demo");
  const auto all = PromptTexts::Load(folder, {});
  const auto few = PromptTexts::Load(folder, 500);
  ASSERT_TRUE(all.ok() && few.ok());
  EXPECT_GT(all->vocab_size(), few->vocab_size());
  EXPECT_GT(few->vocab_size(), 0);
  EXPECT_NE(PromptTexts::Load(folder, 1).status().message().find("raise --random-vocab-size"),
            std::string::npos);
  EXPECT_NE(PromptTexts::Load("/none", {}).status().message().find("--tokenizer"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::apps
