// The large test vectors, which are not in the repository: real vocabularies and every template.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/rng.h"
#include "text/answer_parser.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/golden_templates.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

const std::string kData = MILLRACE_SHARED_DATA;

TEST(ChatTemplateVectors, EveryGoldenRow) {
  EXPECT_EQ(CompareGoldenTemplates(kData + "/chat_templates"), 256);
}

// The earlier calls in a prompt, given back as the text of a model, are the same calls.
TEST(ChatTemplateVectors, CallsRoundTrip) {
  const OrderedJson arguments = OrderedJson::parse(
      R"({"city": "Zürich \"ZH\"\n", "days": 3, "exact": 0.5, "all": true, "in": {"a": [1, "]",
        {}]}})");
  const OrderedJson tools =
      OrderedJson::parse(R"([{"type": "function", "function": {"name": "get_weather",
      "description": "d", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"},
      "days": {"type": "integer"}, "exact": {"type": "number"}, "all": {"type": "boolean"},
      "in": {"type": "object"}}}}}])");
  int found = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(kData + "/chat_templates/templates")) {
    const std::string name = file.path().filename();
    TokenizerConfig config;
    config.bos_token = "<s>";
    config.eos_token = "</s>";
    config.chat_templates["default"] = ReadFile(file.path(), 1 << 20).value();
    const ToolFormat* format = ToolFormatOf(config.chat_templates["default"]);
    if (format == nullptr) continue;
    auto chat_template = ChatTemplate::FromConfig(config, {}).value();
    std::optional<std::string> prompt;
    for (const bool as_text : {false, true}) {
      const OrderedJson call = {
          {"id", "abcdefgh1"},
          {"type", "function"},
          {"function",
           {{"name", "get_weather"},
            {"arguments", as_text ? OrderedJson(arguments.dump()) : arguments}}}};
      const OrderedJson messages = {
          {{"role", "user"}, {"content", "QUESTION"}},
          {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}},
          {{"role", "tool"}, {"tool_call_id", "abcdefgh1"}, {"content", "RESULT"}}};
      const std::string text = messages.dump(), list = tools.dump();
      const auto rendered = chat_template->Render({.messages_json = text,
                                                   .tools_json = list,
                                                   .kwargs_json = "",
                                                   .template_name = std::nullopt});
      if (rendered.ok() && !prompt) prompt = *rendered;
    }
    ASSERT_TRUE(prompt) << name;
    std::string_view answer = *prompt;
    answer.remove_prefix(answer.find("QUESTION"));
    answer = answer.substr(0, answer.find("RESULT"));
    if (format->section_begin.empty()) {
      answer.remove_prefix(std::min(answer.find('{'), answer.size()));
      answer = answer.substr(0, answer.rfind('}') + 1);
    }
    if (answer.find("get_weather") == std::string_view::npos) continue;  // shows no calls
    AnswerParserOptions options;
    options.tools = format;
    options.schemas = tools;
    AnswerParser parser(options);
    AnswerPieces pieces;
    parser.Push(answer, pieces);
    parser.Finish(pieces);
    ++found;
    ASSERT_EQ(pieces.calls.size(), 1u) << name << ": " << answer;
    EXPECT_EQ(pieces.calls[0].name, "get_weather") << name;
    EXPECT_EQ(OrderedJson::parse(pieces.calls[0].arguments), arguments) << name << ": " << answer;
    EXPECT_TRUE(parser.has_whole_calls());
  }
  EXPECT_GE(found, 8);
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

// Texts in parts of real vocabularies: the tokens are those of the whole.
TEST(TokenizerVectors, PartsHaveTheTokensOfTheWhole) {
  const std::string texts =
      ReadFile(kData + "/tokenizers/gguf/ggml-vocab-falcon.gguf.inp", 1 << 20).value();
  std::vector<std::string> pieces = {" ",  " the ", "word",          "\n",     ". ",
                                     ",",  "12",    "1,000.5",       "中文。", "，国",
                                     " a", "</s>",  "<|endoftext|>", "  ",     "ing's"};
  for (size_t at = 0; at + 40 < texts.size(); at += 40) {
    size_t begin = at, end = at + 40;
    while ((texts[begin] & 0xc0) == 0x80) ++begin;
    while ((texts[end] & 0xc0) == 0x80) ++end;
    pieces.push_back(texts.substr(begin, end - begin));
  }
  Rng rng(11);
  for (const char* name : {"falcon", "t5-small", "whisper.tiny", "phi-2", "roberta-base"}) {
    auto tokenizer = LoadJson(name);
    size_t parts = 0;
    for (int round = 0; round < 40; ++round) {
      std::string text;
      while (text.size() < 4000) text += pieces[rng.Between(0, std::ssize(pieces) - 1)];
      const EncodeOptions options{.parse_special = round % 2 == 0};
      const auto whole = tokenizer->EncodeWithin(text, options, {.part_bytes = SIZE_MAX}).value();
      EncodeBounds bounds{.stops = [&] { return ++parts, false; },
                          .part_bytes = static_cast<size_t>(rng.Between(1, 500))};
      ASSERT_EQ(tokenizer->EncodeWithin(text, options, bounds).value().tokens, whole.tokens)
          << name << ": " << text;
      bounds.keeps_end = true;
      ASSERT_EQ(tokenizer->EncodeWithin(text, options, bounds).value().tokens, whole.tokens)
          << name << ": " << text;
    }
    EXPECT_GT(parts, 40u * 10) << name;
  }
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
