// The large test vectors, which are not in the repository: real vocabularies and every template.
#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/golden_templates.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

const std::string kData = MILLRACE_SHARED_DATA;

TEST(ChatTemplateVectors, EveryGoldenRow) {
  EXPECT_EQ(CompareGoldenTemplates(kData + "/chat_templates"), 256);
}

std::shared_ptr<const Tokenizer> LoadJson(const std::string& name) {
  return Tokenizer::FromJson(
             ReadFile(kData + "/tokenizers/json/" + name + "/tokenizer.json", 1 << 26).value())
      .value();
}

// 46 texts, one line of ids each.
TEST(TokenizerVectors, FalconEncodesAsLlamaCpp) {
  auto tokenizer = LoadJson("falcon");
  const std::string stem = kData + "/tokenizers/gguf/ggml-vocab-falcon.gguf";
  const std::string texts = ReadFile(stem + ".inp", 1 << 20).value();
  std::istringstream expected(ReadFile(stem + ".out", 1 << 20).value());
  const std::string separator = "\n__ggml_vocab_test__\n";
  int rows = 0;
  std::string line;
  for (size_t begin = 0; std::getline(expected, line); ++rows) {
    size_t end = texts.find(separator, begin);
    ASSERT_NE(end, std::string::npos);
    std::istringstream words(line);
    std::vector<TokenId> ids{std::istream_iterator<TokenId>(words), {}};
    const std::string text = texts.substr(begin, end - begin);
    auto encoded = tokenizer->Encode(text, {.add_special_tokens = false});
    EXPECT_EQ(encoded.value(), ids) << text;
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
    begin = end + separator.size();
  }
  EXPECT_EQ(rows, 46);
}

// Random ids of real vocabularies: the stream equals the decoded whole.
TEST(DetokenizerVectors, EqualsWholeDecode) {
  Rng rng(3);
  for (const char* name : {"falcon", "t5-small", "whisper.tiny", "phi-2", "roberta-base"}) {
    auto tokenizer = LoadJson(name);
    for (int round = 0; round < 2'000; ++round) {
      std::vector<TokenId> ids(rng.Between(0, 20));
      for (TokenId& id : ids) id = static_cast<TokenId>(rng.Between(0, tokenizer->vocab_size()));
      Detokenizer detokenizer(tokenizer, round % 2 == 0);
      std::string text;
      for (TokenId id : ids) text += detokenizer.Push(id);
      text += detokenizer.Flush();
      ASSERT_EQ(text, tokenizer->Decode(ids, round % 2 == 0)) << name;
    }
  }
}

// transformers removes English spaces before punctuation after decoding
// (clean_up_tokenization_spaces), and the vectors were made with that. A server must return the
// model's own text.
std::string WithoutSpacesBeforePunctuation(std::string text) {
  for (const char* tail : {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"}) {
    const std::string spaced = std::string(" ") + tail;
    for (size_t at = 0; (at = text.find(spaced, at)) != std::string::npos;) text.erase(at, 1);
  }
  return text;
}

struct HubCase {
  const char* folder;
  const char* key;
  int rows;
};

void PrintTo(const HubCase& c, std::ostream* out) { *out << c.key; }

class HubVectors : public testing::TestWithParam<HubCase> {};

// tokenizer_tests.json: inputs with ids and decoded text, with and without special tokens.
TEST_P(HubVectors, EncodesAndDecodes) {
  auto tokenizer = LoadJson(GetParam().folder);
  const Json all =
      ParseJson(ReadFile(kData + "/tokenizers/encoded/tokenizer_tests.json", 1 << 20).value())
          .value();
  int rows = 0;
  for (const Json& row : all[GetParam().key]) {
    const std::string text = row["input"];
    const Json& encoded = row["encoded"];
    std::vector<TokenId> ids = encoded["input_ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer->Encode(text, {.parse_special = true}).value(), ids) << text;
    auto tidy = [&](bool skip) {
      return WithoutSpacesBeforePunctuation(tokenizer->Decode(ids, skip));
    };
    EXPECT_EQ(tidy(false), row["decoded_with_special"].get<std::string>());
    EXPECT_EQ(tidy(true), row["decoded_without_special"].get<std::string>());
    ++rows;
  }
  EXPECT_EQ(rows, GetParam().rows);
}

INSTANTIATE_TEST_SUITE_P(Vectors, HubVectors,
                         testing::Values(HubCase{"falcon", "tiiuae/falcon-7b", 19},
                                         HubCase{"t5-small", "t5-base", 18},
                                         HubCase{"whisper.tiny", "openai/whisper-large-v2", 18}),
                         [](const auto& info) {
                           return std::string(info.param.folder).substr(0, 2);
                         });

}  // namespace
}  // namespace millrace::text
