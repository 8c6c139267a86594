#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "base/testing/source_path.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

std::shared_ptr<const Tokenizer> LoadTokenizer(const std::string& name) {
  return Tokenizer::Load(SourcePath("src/text/testdata/tokenizers/") + name).value();
}

// Concatenates the pieces of `ids`, each checked to be UTF-8.
std::string Stream(std::shared_ptr<const Tokenizer> tokenizer, const std::vector<TokenId>& ids,
                   bool skip_special, std::span<const TokenId> prompt = {}) {
  Detokenizer detokenizer(std::move(tokenizer), skip_special, prompt);
  std::string text;
  for (TokenId id : ids) {
    std::string piece = detokenizer.Push(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    text += piece;
  }
  text += detokenizer.Flush();
  EXPECT_TRUE(IsValidUtf8(text));
  return text;
}

class DetokenizerProperty : public testing::TestWithParam<const char*> {};

std::vector<TokenId> RandomIds(const Tokenizer& tokenizer, Rng& rng) {
  std::vector<TokenId> ids(rng.Between(0, 24));
  // Some ids are beyond the vocabulary: sampling from padded logits can produce them.
  for (TokenId& id : ids) id = static_cast<TokenId>(rng.Between(0, tokenizer.vocab_size() + 1));
  return ids;
}

TEST_P(DetokenizerProperty, EqualsWholeDecode) {
  auto tokenizer = LoadTokenizer(GetParam());
  Rng rng(1);
  for (int round = 0; round < 10'000; ++round) {
    const std::vector<TokenId> ids = RandomIds(*tokenizer, rng);
    const bool skip = round % 2 == 0;
    ASSERT_EQ(Stream(tokenizer, ids, skip), tokenizer->Decode(ids, skip))
        << testing::PrintToString(ids);
  }
}

// After a prompt that ends with a complete character, the stream is what Decode adds.
TEST_P(DetokenizerProperty, ContinuesAPrompt) {
  auto tokenizer = LoadTokenizer(GetParam());
  Rng rng(2);
  int compared = 0;
  for (int round = 0; round < 10'000; ++round) {
    const std::vector<TokenId> prompt = RandomIds(*tokenizer, rng);
    std::vector<TokenId> all = prompt;
    const std::vector<TokenId> ids = RandomIds(*tokenizer, rng);
    all.insert(all.end(), ids.begin(), ids.end());
    const bool skip = round % 2 == 0;
    const std::string before = tokenizer->Decode(prompt, skip);
    const std::string streamed = Stream(tokenizer, ids, skip, prompt);
    if (before.ends_with(kReplacementCharacter)) continue;
    const std::string after = tokenizer->Decode(all, skip);
    if (!after.starts_with(before)) continue;  // a run of byte tokens that `ids` made invalid
    ASSERT_EQ(streamed, after.substr(before.size())) << testing::PrintToString(all);
    ++compared;
  }
  EXPECT_GT(compared, 2'000);
}

INSTANTIATE_TEST_SUITE_P(Decoders, DetokenizerProperty,
                         testing::Values("byte_level", "byte_fallback", "unigram", "word_piece"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<TokenId> ByteTokens(const Tokenizer& tokenizer, const std::vector<const char*>& names) {
  std::vector<TokenId> ids;
  for (const char* name : names) ids.push_back(tokenizer.IdOf(name).value());
  return ids;
}

TEST(Detokenizer, EmitsACharacterWhenItIsWhole) {
  auto tokenizer = LoadTokenizer("byte_level");
  const std::vector<TokenId> ids = ByteTokens(*tokenizer, {"ð", "Ł", "Ļ", "Ĥ"});
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.Push(ids[0]), "");
  EXPECT_EQ(detokenizer.Push(ids[1]), "");
  EXPECT_EQ(detokenizer.Push(ids[2]), "");
  EXPECT_EQ(detokenizer.Push(ids[3]), "\xF0\x9F\x99\x82");
  EXPECT_EQ(detokenizer.Flush(), "");
}

// The prompt ends after two of three bytes of "€".
TEST(Detokenizer, APromptThatEndsInHalfACharacterDoesNotLeak) {
  auto tokenizer = LoadTokenizer("byte_fallback");
  const std::vector<TokenId> prompt = ByteTokens(*tokenizer, {"▁hello", "<0xE2>", "<0x82>"});
  EXPECT_EQ(Stream(tokenizer, ByteTokens(*tokenizer, {"<0xAC>", "▁the"}), true, prompt), "€ the");
  EXPECT_EQ(Stream(tokenizer, ByteTokens(*tokenizer, {"▁the"}), true, prompt), " the");
  EXPECT_EQ(Stream(tokenizer, {}, true, prompt), "");
  auto byte_level = LoadTokenizer("byte_level");
  const std::vector<TokenId> half = ByteTokens(*byte_level, {"hello", "â", "Ĥ"});
  EXPECT_EQ(Stream(byte_level, ByteTokens(*byte_level, {"¬", "hello"}), true, half), "€hello");
  EXPECT_EQ(Stream(byte_level, ByteTokens(*byte_level, {"hello"}), true, half), "hello");
  EXPECT_EQ(Stream(byte_level, {}, true, half), "");
}

TEST(Detokenizer, ALeadingSpaceGoesAtTheStartAndStaysAfterAPrompt) {
  for (const char* name : {"byte_fallback", "unigram"}) {
    auto tokenizer = LoadTokenizer(name);
    const std::vector<TokenId> ids = ByteTokens(*tokenizer, {"▁hello", "▁world"});
    EXPECT_EQ(Stream(tokenizer, ids, true), "hello world") << name;
    EXPECT_EQ(Stream(tokenizer, ids, true, ids), " hello world") << name;
    const TokenId special = tokenizer->IdOf("</s>").value();
    EXPECT_EQ(Stream(tokenizer, ids, true, {&special, 1}), "hello world") << name;
  }
}

TEST(Utf8Stream, ReplacesEachMaximalInvalidPiece) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xC3\xA9", "aé"},          {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82z", "\uFFFDz"},     {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"}, {"\xF0\x9F\x99\x82", "🙂"},
      {"\xF4\x90", "\uFFFD\uFFFD"}, {"\xE2\xE2\x82\xAC", "\uFFFD€"},
  };
  for (const auto& [bytes, text] : cases) {
    Utf8Stream stream;
    std::string out;
    for (char c : bytes) stream.Push({&c, 1}, out);
    stream.Flush(out);
    EXPECT_EQ(out, text);
  }
}

}  // namespace
}  // namespace millrace::text
