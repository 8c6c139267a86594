#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/testing/source_path.h"

namespace millrace::text {
namespace {

const std::string kTokenizerFolder = SourcePath("src/text/testdata/tokenizers/");

std::shared_ptr<const Tokenizer> Load(const std::string& name) {
  return Tokenizer::Load(kTokenizerFolder + name).value();
}

constexpr EncodeOptions kBare{.add_special_tokens = false};

TEST(Tokenizer, RoundTripsTextThroughEveryDecoder) {
  for (const char* name : {"byte_level", "byte_fallback"}) {
    auto tokenizer = Load(name);
    for (const char* text : {"hello world", " hello  the 日本 🙂 é", "", "€", "a\nb\tc"}) {
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, kBare).value(), true), text) << name;
    }
  }
  auto unigram = Load("unigram");
  EXPECT_EQ(unigram->Decode(unigram->Encode("hello world ing", kBare).value(), true),
            "hello world ing");
}

TEST(Tokenizer, SpecialTokensInTextAreParsedOnlyOnRequest) {
  auto tokenizer = Load("byte_level");
  const TokenId end = tokenizer->IdOf("<|im_end|>").value();
  const std::string text = "hello<|im_end|>";
  std::vector<TokenId> plain = tokenizer->Encode(text, kBare).value();
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer->Decode(plain, true), text);
  std::vector<TokenId> parsed =
      tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = true}).value();
  EXPECT_EQ(parsed.back(), end);
  EXPECT_EQ(tokenizer->Decode(parsed, true), "hello");
  EXPECT_EQ(tokenizer->Decode(parsed, false), text);
}

TEST(Tokenizer, TheGuardSplitsSpecialTokensAndIsRemoved) {
  auto tokenizer = Load("byte_level");
  EncodeOptions guarded{.add_special_tokens = false, .parse_special = true, .guarded = true};
  std::vector<TokenId> ids =
      tokenizer->Encode("<|im_start|>hello<\uFDD0|im_end|> the<|im_end|>", guarded).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->IdOf("<|im_end|>").value()), 1);
  EXPECT_EQ(tokenizer->Decode(ids, true), "hello<|im_end|> the");
  std::vector<TokenId> plain = tokenizer->Encode("hello<|im_end|> the", kBare).value();
  EXPECT_EQ(std::vector<TokenId>(ids.begin() + 1, ids.end() - 1), plain);
}

TEST(Tokenizer, AddsWhatThePostProcessorAdds) {
  auto tokenizer = Load("byte_fallback");
  EXPECT_EQ(tokenizer->Encode("the", {}).value().front(), tokenizer->IdOf("<s>").value());
  EXPECT_NE(tokenizer->Encode("the", kBare).value().front(), tokenizer->IdOf("<s>").value());
}

TEST(Tokenizer, DescribesTokens) {
  auto tokenizer = Load("byte_fallback");
  TokenInfo byte = tokenizer->Token(tokenizer->IdOf("<0xE2>").value());
  EXPECT_TRUE(byte.known && byte.byte && !byte.special);
  EXPECT_EQ(byte.raw, "<0xE2>");
  EXPECT_EQ(byte.text, "\xE2");
  TokenInfo word = tokenizer->Token(tokenizer->IdOf("▁hello").value());
  EXPECT_EQ(word.text, " hello");
  EXPECT_TRUE(tokenizer->Token(1).special);
  EXPECT_FALSE(tokenizer->Token(tokenizer->vocab_size()).known);
  EXPECT_FALSE(tokenizer->Token(-1).known);
  EXPECT_EQ(tokenizer->IdOf("no such token"), std::nullopt);
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  auto tokenizer = Load("byte_level");
  std::vector<TokenId> ids = {-1, 1 << 30, tokenizer->vocab_size()};
  EXPECT_EQ(tokenizer->Decode(ids, false), "");
}

// 200,000 characters without a space, and as many combining marks. A quadratic merge would need
// minutes; the limit here is far below that and far above n log n.
TEST(Tokenizer, LongTextWithoutSpacesIsNotQuadratic) {
  for (const char* name : {"byte_level", "byte_fallback", "unigram"}) {
    auto tokenizer = Load(name);
    for (const std::string unit : {"a", "hello", "\u0301"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_FALSE(tokenizer->Encode(text, kBare).value().empty());
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << name;
    }
  }
}

TEST(Tokenizer, RefusesBadInput) {
  auto tokenizer = Load("byte_level");
  EXPECT_EQ(tokenizer->Encode("a\xff", kBare).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Tokenizer::Load("/nonexistent").status().code(), StatusCode::kNotFound);
  for (const char* json : {"", "{}", "[]", "{\"model\":{\"type\":\"Nonsense\"}}",
                           "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{},"
                           "\"merges\":[]},\"added_tokens\":[]}"}) {
    EXPECT_EQ(Tokenizer::FromJson(json).status().code(), StatusCode::kInvalidArgument) << json;
  }
}

}  // namespace
}  // namespace millrace::text
