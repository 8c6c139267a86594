#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
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

// What texts are made of: places where they can be divided, and what could make these wrong.
std::string RandomText(Rng& rng, size_t bytes) {
  static const std::vector<std::string> kPieces = {
      "the",   "hello", " ",    " ",      " ",       "  ",     "\n",         "\n",  "\n\n", ".",
      ",",     "1",     "42",   "123456", "don't",   "I'LL",   "x",          "Q",   "中",   "文",
      "。",    "，",    "の",   "é",      "e\u0301", "🙂",   "<|im_end|>", "<s>", "<",    "world",
      "слово", "한국",  "हिंदी", "Ⅷ",      "ⓐ",       "、",     "ª",          "ing", "\t",   "\r\n",
      "-",     "'s",    "ﬁ",    "\u00a0", "٣",       "\uFDD0", "_",          "/",   "HTTP"};
  std::string text;
  while (text.size() < bytes) text += kPieces[rng.Between(0, std::ssize(kPieces) - 1)];
  return text;
}

constexpr size_t kWhole = SIZE_MAX;

// Small tokenizers of every kind, beside those in files.
std::vector<std::shared_ptr<const Tokenizer>> SmallTokenizers() {
  std::vector<std::shared_ptr<const Tokenizer>> all;
  for (const char* name : {"byte_level", "byte_fallback", "unigram"}) all.push_back(Load(name));
  const auto letters = [](const std::string& between, const std::string& more) {
    std::string vocab = R"({"[UNK]":0,"the":1,"##the":2,"hello":3)";
    int id = 4;
    for (char c = 'a'; c <= 'z'; ++c) {
      vocab += fmt::format(R"(,"{}":{},"{}{}":{})", c, id, between, c, id + 1);
      id += 2;
    }
    return vocab + more + "}";
  };
  all.push_back(Tokenizer::FromJson(R"({"version":"1.0","added_tokens":[],"normalizer":
      {"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,
      "lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,"decoder":
      {"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":
      "[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":)" +
                                    letters("##", "") + "}}")
                    .value());
  // SentencePiece's kind: spaces are characters of one long word, and one is put in front.
  all.push_back(
      Tokenizer::FromJson(R"({"version":"1.0","added_tokens":[{"id":900,"content":"<s>",
      "single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
      "normalizer":{"type":"Sequence","normalizers":[{"type":"Strip",
      "strip_left":true,"strip_right":false},{"type":"Prepend","prepend":"▁"},
      {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
      "pre_tokenizer":null,"post_processor":null,"decoder":null,"model":{"type":"BPE",
      "unk_token":"[UNK]","fuse_unk":true,"vocab":)" +
                          letters("#", R"(,"▁":100,"▁t":101,"he":102,"▁▁":103,"th":104)") +
                          R"(,"merges":["▁ t","h e","▁ ▁","t h"]}})")
          .value());
  all.push_back(Tokenizer::FromJson(
                    R"({"version":"1.0","added_tokens":[],"normalizer":
      {"type":"NFKC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":
      {"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)"
                    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
      "behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,
      "trim_offsets":true,"use_regex":false}]},"post_processor":null,"decoder":null,
      "model":{"type":"BPE","unk_token":"[UNK]","fuse_unk":false,"ignore_merges":true,"vocab":)" +
                    letters("#", R"(,"Ġ":100,"Ġt":101,"he":102)") + R"(,"merges":["Ġ t","h e"]}})")
                    .value());
  return all;
}

TEST(Tokenizer, PartsHaveTheTokensOfTheWhole) {
  Rng rng(7);
  size_t divided = 0;
  for (const auto& tokenizer : SmallTokenizers()) {
    for (int round = 0; round < 25; ++round) {
      const std::string text = RandomText(rng, 2000);
      const EncodeOptions options{.add_special_tokens = round % 2 == 0,
                                  .parse_special = round % 3 == 0,
                                  .guarded = round % 3 == 0};
      const auto whole = tokenizer->EncodeWithin(text, options, {.part_bytes = kWhole}).value();
      size_t parts = 0;
      EncodeBounds bounds{.part_bytes = static_cast<size_t>(rng.Between(1, 400))};
      bounds.stops = [&] { return ++parts, false; };
      EXPECT_EQ(tokenizer->EncodeWithin(text, options, bounds).value().tokens, whole.tokens)
          << text;
      divided += parts > 2 ? 1 : 0;
      bounds.keeps_end = true;
      EXPECT_EQ(tokenizer->EncodeWithin(text, options, bounds).value().tokens, whole.tokens)
          << text;
      // With fewer tokens: those of the wanted end.
      bounds.tokens_max = static_cast<size_t>(rng.Between(1, std::ssize(whole.tokens)));
      const auto last = tokenizer->EncodeWithin(text, options, bounds).value().tokens;
      ASSERT_GE(last.size(), bounds.tokens_max);
      EXPECT_TRUE(std::equal(last.end() - static_cast<std::ptrdiff_t>(bounds.tokens_max),
                             last.end(),
                             whole.tokens.end() - static_cast<std::ptrdiff_t>(bounds.tokens_max)));
      bounds.keeps_end = false;
      const auto first = tokenizer->EncodeWithin(text, options, bounds).value().tokens;
      ASSERT_GE(first.size(), bounds.tokens_max);
      EXPECT_TRUE(std::equal(first.begin(),
                             first.begin() + static_cast<std::ptrdiff_t>(bounds.tokens_max),
                             whole.tokens.begin()));
    }
  }
  EXPECT_GT(divided, 80u);  // of 150: the test does not compare wholes with wholes
}

TEST(Tokenizer, StopsWhenThereAreEnoughTokensOrNobodyWantsThem) {
  auto tokenizer = Load("byte_level");
  std::string text;
  while (text.size() < 1u << 20) text += "hello the world ";
  int parts = 0;
  EncodeBounds bounds{.tokens_max = 100, .stops = [&] { return ++parts, false; }};
  const EncodedText encoded = tokenizer->EncodeWithin(text, kBare, bounds).value();
  EXPECT_FALSE(encoded.whole);
  EXPECT_GT(encoded.tokens.size(), 100u);
  EXPECT_EQ(parts, 1);
  bounds = {.stops = [&] { return ++parts > 3; }};
  EXPECT_EQ(tokenizer->EncodeWithin(text, kBare, bounds).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(parts, 4);
}

TEST(Tokenizer, AStretchThatCannotBeDividedHasALimit) {
  auto tokenizer = Load("byte_level");
  const std::string text = "a b " + std::string(3u << 20, 'x') + " c d";
  for (bool keeps_end : {false, true}) {
    const EncodeBounds bounds{.keeps_end = keeps_end, .undivided_bytes_max = 1u << 20};
    EXPECT_EQ(tokenizer->EncodeWithin(text, kBare, bounds).status().code(), StatusCode::kTooLarge);
  }
  EXPECT_TRUE(
      tokenizer->EncodeWithin(text.substr(0, 1u << 20), kBare, {.undivided_bytes_max = 1u << 20})
          .ok());
}

std::string WithPart(const std::string& part) {
  return R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,
            "e":3},"merges":["a b"]},)" +
         part + "}";
}

std::string Sequence(const std::string& list, const std::string& step, int times) {
  std::string text = R"({"type":"Sequence",")" + list + R"(":[)";
  for (int i = 0; i < times; ++i) text += (i > 0 ? "," : "") + step;
  return text + "]}";
}

// Each of these takes gigabytes or minutes without a limit.
TEST(Tokenizer, RefusesFilesThatMultiplyATextOrThemselves) {
  const std::string grows =
      R"({"type":"Replace","pattern":{"String":"e"},"content":"eeeeeeeeeeeeeeee"})";
  const std::string regex_grows = R"({"type":"Replace","pattern":{"Regex":"|."},"content":"eeee"})";
  const auto large = [](size_t bytes) { return std::string(bytes, 'x'); };
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 40; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  const auto added = [](const std::string& content, int count) {
    std::string list = R"("added_tokens":[)";
    for (int i = 0; i < count; ++i) {
      list += fmt::format(R"({}{{"id":{},"content":"{}{}","single_word":false,"lstrip":false,
          "rstrip":false,"normalized":true,"special":false}})",
                          i > 0 ? "," : "", 10 + i, i, content);
    }
    return list + "]";
  };
  std::string chain = R"({"version":"1.0","added_tokens":[],"model":{"type":"Unigram","unk_id":0,
      "vocab":[["<unk>",0])";
  for (size_t i = 1; i < 300; ++i) chain += fmt::format(R"(,["{}",-1])", std::string(i, 'a'));
  const std::map<std::string, std::string> files = {
      {"a chain of tokens of model.vocab", chain + "]}}"},
      {"an empty pattern", WithPart(R"("normalizer":{"type":"Replace","pattern":{"String":""},
          "content":"x"})")},
      {"a second text", WithPart(R"("post_processor":{"type":"TemplateProcessing","single":[
          {"Sequence":{"id":"B","type_id":0}}],"pair":[],"special_tokens":{}})")},
      {"Replace", WithPart(R"("normalizer":)" + Sequence("normalizers", grows, 9))},
      {"Replace)", WithPart(R"("normalizer":)" + Sequence("normalizers", regex_grows, 12))},
      {"prepend of Prepend",
       WithPart(R"("normalizer":{"type":"Prepend","prepend":")" + large(10u << 20) + R"("})")},
      {"levels", WithPart(R"("normalizer":)" + nested)},
      {"steps", WithPart(R"("normalizer":)" + Sequence("normalizers", R"({"type":"NFC"})", 2000))},
      {"a token of added_tokens", WithPart(added(large(5u << 20), 1))},
      {"added_tokens, all their content", WithPart(added(large(4000), 3000))},
      {"the decoder", WithPart(R"("decoder":)" + Sequence("decoders", grows, 9))},
      {"repeats the text", WithPart(R"("post_processor":{"type":"TemplateProcessing","single":[
          {"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],
          "special_tokens":{}})")},
      {"max_input_chars_per_word",
       R"({"version":"1.0","added_tokens":[],"model":{"type":"WordPiece",
          "unk_token":"a","continuing_subword_prefix":"##","max_input_chars_per_word":1000000000,
          "vocab":{"a":0}}})"},
      {"a token of model.vocab",
       R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":
          {"a":0,")" +
           large(1u << 20) + R"(":1},"merges":[]}})"}};
  for (const auto& [named, json] : files) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status = Tokenizer::FromJson(json).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << named;
    const std::string part = named.substr(0, named.find(')'));
    EXPECT_NE(status.message().find(part == "the decoder" ? "of decoder" : part), std::string::npos)
        << named << ": " << status.message();
    EXPECT_LT(status.message().size(), 300u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << named;
  }
}

// A file may be harmless for every single character and not for a text.
TEST(Tokenizer, RefusesATextThatTheNormalizerMultiplies) {
  const std::string doubles =
      R"({"type":"Replace","pattern":{"String":"ee"},"content":"eeeeeeee"})";
  auto tokenizer =
      Tokenizer::FromJson(WithPart(R"("normalizer":)" + Sequence("normalizers", doubles, 12)))
          .value();
  EXPECT_TRUE(tokenizer->Encode("abe", kBare).ok());
  const Status status = tokenizer->Encode(std::string(100, 'e'), kBare).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("normalizer (Replace) makes more than"), std::string::npos)
      << status.message();
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
