#include "text/grammars.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "base/testing/source_path.h"
#include "text/token_table.h"

namespace millrace::text {
namespace {

struct Vocabulary {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<TokenId> ends;
  TokenTable table;
  std::shared_ptr<Grammars> grammars;
};

Vocabulary Load(const std::string& name, const std::string& end) {
  Vocabulary v;
  v.tokenizer = Tokenizer::Load(SourcePath("src/text/testdata/tokenizers/") + name).value();
  v.ends = {v.tokenizer->IdOf(end).value()};
  v.table = TokenTableOf(*v.tokenizer, v.ends).value();
  v.grammars = Grammars::Of(v.table);
  return v;
}
Vocabulary ByteLevel() { return Load("byte_level", "<|im_end|>"); }

bool Has(std::span<const uint32_t> allowed, TokenId token) {
  return (allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

// Draws an output that matches, with at most `limit` tokens before its end; short texts are
// preferred, so that most end. Empty: it did not end.
std::vector<TokenId> Draw(const Vocabulary& v, const std::string& grammar, Rng& rng, size_t limit) {
  const auto matcher = v.grammars->MatcherOf(grammar);
  std::vector<TokenId> output;
  while (output.size() < limit) {
    const auto allowed = matcher->Allowed(output);
    if (!allowed.ok()) {
      ADD_FAILURE() << allowed.status().message();
      return {};
    }
    std::vector<TokenId> tokens;
    for (TokenId t = 0; t < v.tokenizer->vocab_size(); ++t) {
      if (Has(*allowed, t)) tokens.push_back(t);
    }
    if (tokens.empty()) {
      ADD_FAILURE() << "nothing is allowed";
      return {};
    }
    if (Has(*allowed, v.ends[0]) && rng.Between(0, 2) == 0) return output;
    const TokenId token =
        tokens[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(tokens.size()) - 1))];
    if (token == v.ends[0]) return output;
    output.push_back(token);
  }
  return {};
}

std::string TextOf(const Vocabulary& v, const std::vector<TokenId>& output) {
  return v.tokenizer->Decode(output, true);
}

TEST(Grammars, JsonMatchesItsSchema) {
  const Vocabulary v = ByteLevel();
  const std::string grammar = GrammarOf(
      GrammarKind::kJsonSchema,
      R"({"type": "object", "properties": {"b": {"type": "boolean"}, "a": {"enum": [1, "x"]}},
          "required": ["b", "a"], "additionalProperties": false})");
  Rng rng(1);
  int drawn = 0;
  for (int i = 0; i < 50; ++i) {
    const std::vector<TokenId> output = Draw(v, grammar, rng, 60);
    if (output.empty()) continue;
    ++drawn;
    const Result<Json> json = ParseJson(TextOf(v, output));
    ASSERT_TRUE(json.ok()) << TextOf(v, output);
    EXPECT_TRUE((*json)["b"].is_boolean());
    EXPECT_TRUE((*json)["a"] == Json(1) || (*json)["a"] == Json("x")) << json->dump();
    EXPECT_EQ(json->size(), 2u);
  }
  EXPECT_GT(drawn, 10);
}

TEST(Grammars, ChoicesRegularExpressionsAndLark) {
  const Vocabulary v = ByteLevel();
  Rng rng(2);
  for (int i = 0; i < 20; ++i) {
    const std::string choice =
        TextOf(v, Draw(v, GrammarOf(GrammarKind::kChoice, R"(["yes", "no \"sir\""])"), rng, 40));
    EXPECT_TRUE(choice == "yes" || choice == "no \"sir\"") << choice;
    const std::string year =
        TextOf(v, Draw(v, GrammarOf(GrammarKind::kRegex, "^(19|20)[0-9]{2}/x$"), rng, 40));
    EXPECT_EQ(year.size(), 6u) << year;
    const std::string sum = TextOf(
        v, Draw(v, GrammarOf(GrammarKind::kLark, "start: \"a\" | \"(\" start \")\"\n"), rng, 400));
    EXPECT_TRUE(sum.empty() || sum.find('a') != std::string::npos) << sum;
  }
}

TEST(Grammars, TagsConstrainOnlyWhatFollowsATrigger) {
  const Vocabulary v = ByteLevel();
  const std::string grammar = GrammarOf(GrammarKind::kTags, R"({
      "structures": [{"begin": "<f=a>", "schema": {"type": "boolean"}, "end": "</f>"},
                     {"begin": "<f=b>", "schema": {"enum": [7]}, "end": "</f>"}],
      "triggers": ["<f="]})");
  const auto follow = [&](const std::string& text) {
    const auto matcher = v.grammars->MatcherOf(grammar);
    std::string followers;
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(v.tokenizer->IdOf(std::string(1, c)).value());
    const auto allowed = matcher->Allowed(tokens);
    if (!allowed.ok()) return "error: " + allowed.status().message();
    for (char c = '!'; c <= '~'; ++c) {
      const auto id = v.tokenizer->IdOf(std::string(1, c));
      if (id && Has(*allowed, *id)) followers += c;
    }
    return followers + (Has(*allowed, v.ends[0]) ? " end" : "");
  };
  EXPECT_GT(follow("free<f").size(), 50u);
  EXPECT_EQ(follow("free<f="), "ab");
  EXPECT_EQ(follow("free<f=a>"), "ft");
  EXPECT_EQ(follow("free<f=b>"), "7");
  EXPECT_EQ(follow("free<f=a>true</f"), ">");
  EXPECT_GT(follow("free<f=a>true</f>").size(), 50u);
  EXPECT_TRUE(follow("free<f=a>true</f>").ends_with(" end"));
}

// Preemption, moves and restarts give a new matcher, or go back with the same one.
TEST(Grammars, MasksFollowFromTheOutputAlone) {
  const Vocabulary v = ByteLevel();
  const std::string grammar = GrammarOf(
      GrammarKind::kJsonSchema, R"({"type": "array", "items": {"type": "string"}, "maxItems": 3})");
  Rng rng(3);
  for (int i = 0; i < 10; ++i) {
    const std::vector<TokenId> output = Draw(v, grammar, rng, 200);
    const auto one = v.grammars->MatcherOf(grammar);
    for (int k = 0; k < 20; ++k) {
      const auto length = static_cast<size_t>(rng.Between(0, std::ssize(output)));
      const auto again = one->Allowed(std::span(output).first(length));
      ASSERT_TRUE(again.ok());
      const auto fresh = v.grammars->MatcherOf(grammar);
      const auto first = fresh->Allowed(std::span(output).first(length));
      ASSERT_TRUE(first.ok());
      EXPECT_TRUE(std::ranges::equal(*again, *first)) << "after " << length;
    }
  }
}

// What a controller checks of results is what a worker's masks allow.
TEST(Grammars, TakesWhatTheMasksAllow) {
  const Vocabulary v = ByteLevel();
  const std::vector<std::string> all = {
      GrammarOf(GrammarKind::kRegex, "^(19|20)[0-9]{2}/x*$"),
      GrammarOf(GrammarKind::kJsonSchema, R"({"type": "array", "items": {"type": "boolean"},
                                                "minItems": 6})")};
  Rng rng(7);
  for (const std::string& grammar : all) {
    ASSERT_TRUE(v.grammars->Check(grammar).ok());
    const auto masks = v.grammars->MatcherOf(grammar), takes = v.grammars->MatcherOf(grammar);
    std::vector<TokenId> output;
    int refused = 0;
    while (output.size() < 12) {
      const auto allowed = masks->Allowed(output);
      ASSERT_TRUE(allowed.ok());
      std::vector<TokenId> tokens;
      for (TokenId t = 0; t < v.tokenizer->vocab_size(); ++t) {
        const bool ends = t == v.ends[0], has = Has(*allowed, t);
        if (has && !ends) tokens.push_back(t);
        if (!has && !ends && rng.Between(0, 9) != 0) continue;  // some of them
        ASSERT_EQ(takes->Takes(output, t, ends), has) << t << " after " << TextOf(v, output);
        refused += has ? 0 : 1;
      }
      if (tokens.empty()) break;
      output.push_back(
          tokens[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(tokens.size()) - 1))]);
    }
    EXPECT_GT(output.size(), 4u);
    EXPECT_GT(refused, 10);
  }
}

TEST(Grammars, TakesDoesNotWait) {
  const Vocabulary v = ByteLevel();
  const auto unsound = v.grammars->MatcherOf(GrammarOf(GrammarKind::kRegex, "("));
  EXPECT_TRUE(unsound->Takes({}, 1, false)) << "who computes says that it is unsound";
}

TEST(Grammars, OnlyTheEndFollowsACompleteMatch) {
  const Vocabulary v = ByteLevel();
  const auto matcher = v.grammars->MatcherOf(GrammarOf(GrammarKind::kChoice, R"(["x"])"));
  const std::vector<TokenId> x = {v.tokenizer->IdOf("x").value()};
  const auto allowed = matcher->Allowed(x);
  ASSERT_TRUE(allowed.ok());
  for (TokenId t = 0; t < v.tokenizer->vocab_size(); ++t) {
    EXPECT_EQ(Has(*allowed, t), t == v.ends[0]) << t;
  }
  const std::vector<TokenId> xx = {x[0], x[0]};
  EXPECT_EQ(matcher->Allowed(xx).status().code(), StatusCode::kInternal);
}

TEST(Grammars, WhatCannotBeCompiledIsRefusedWithOneLine) {
  const Vocabulary v = ByteLevel();
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += R"({"items":)";
  const std::pair<GrammarKind, std::string> cases[] = {
      {GrammarKind::kJsonSchema, "{"},
      {GrammarKind::kJsonSchema, deep},
      {GrammarKind::kJsonSchema, R"({"type": "what"})"},
      {GrammarKind::kJsonSchema, R"({"allOf": [{"type": "string"}, {"type": "number"}]})"},
      {GrammarKind::kJsonSchema, R"({"$ref": "#/nowhere"})"},
      {GrammarKind::kJsonSchema, R"({"$ref": "http://127.0.0.1:1/schema"})"},
      {GrammarKind::kRegex, "("},
      {GrammarKind::kRegex, "(?=a)b"},
      {GrammarKind::kChoice, "[]"},
      {GrammarKind::kChoice, "[1]"},
      {GrammarKind::kLark, "root ::= x"},
      {GrammarKind::kLark, "start: nothing"},
      {GrammarKind::kTags, R"({"structures": [], "triggers": ["a"]})"},
      {GrammarKind::kTags, R"({"structures": [{"begin": "b", "end": ""}], "triggers": ["a"]})"},
  };
  for (const auto& [kind, text] : cases) {
    const Status status = v.grammars->Check(GrammarOf(kind, text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_TRUE(v.grammars->Check(GrammarOf(GrammarKind::kRegex, "a")).ok());
}

TEST(Grammars, AnnotationsOfASchemaDoNotConstrain) {
  const Vocabulary v = ByteLevel();
  for (const char* schema :
       {R"({"type": "string", "format": "path"})", R"({"type": "array", "uniqueItems": false})",
        R"({"properties": {"format": {"type": "string", "format": "password"}}})",
        R"({"type": "string", "if": {"const": "a"}})", R"({"type": "array", "minContains": 2})"}) {
    const Status status = v.grammars->Check(GrammarOf(GrammarKind::kJsonSchema, schema));
    EXPECT_TRUE(status.ok()) << schema << ": " << status.message();
  }
  const Status tags = v.grammars->Check(GrammarOf(GrammarKind::kTags, R"({"triggers": ["<f"],
      "structures": [{"begin": "<f>", "schema": {"type": "string", "format": "path"},
                      "end": "</f>"}]})"));
  EXPECT_TRUE(tags.ok()) << tags.message();
  const Status unique = v.grammars->Check(
      GrammarOf(GrammarKind::kJsonSchema, R"({"type": "array", "uniqueItems": true})"));
  EXPECT_EQ(unique.code(), StatusCode::kInvalidArgument);
}

TEST(Grammars, ThousandsOfChoices) {
  const Vocabulary v = ByteLevel();
  Json choices = Json::array();
  for (int i = 0; i < 5000; ++i) choices.push_back("choice/" + std::to_string(i) + ".\n");
  Rng rng(5);
  const std::string text =
      TextOf(v, Draw(v, GrammarOf(GrammarKind::kChoice, choices.dump()), rng, 40));
  EXPECT_NE(std::ranges::find(choices, Json(text)), choices.end()) << text;
}

// No text takes long, because limits count work.
TEST(Grammars, NestedRepetitionsDoNotTakeLong) {
  const Vocabulary v = ByteLevel();
  std::string nested = "a";
  for (int i = 0; i < 40; ++i) nested = "(" + nested + "{1,100})";
  for (const std::string& regex : {nested, std::string("(a+)+$"), std::string("(a|aa|a?){1,5000}b"),
                                   std::string("(.*a){30}"), std::string("[ab]*a[ab]{20}")}) {
    const auto begun = std::chrono::steady_clock::now();
    const std::string grammar = GrammarOf(GrammarKind::kRegex, regex);
    if (v.grammars->Check(grammar).ok()) {
      const auto matcher = v.grammars->MatcherOf(grammar);
      std::vector<TokenId> output;
      for (int i = 0; i < 30; ++i) {
        const auto allowed = matcher->Allowed(output);
        if (!allowed.ok()) {
          EXPECT_EQ(allowed.status().code(), StatusCode::kInvalidArgument);
          break;
        }
        output.push_back(v.tokenizer->IdOf("a").value());
        if (!Has(*allowed, output.back())) break;
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5)) << regex;
  }
}

TEST(Grammars, ProcessesShareThemByDigestAndThreadsUseThemTogether) {
  const Vocabulary v = ByteLevel(), w = ByteLevel();
  EXPECT_EQ(v.grammars, w.grammars);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&v, t] {
      Rng rng(static_cast<uint64_t>(t));
      for (int i = 0; i < 20; ++i) {
        const std::string n = std::to_string(i % 5);
        const auto grammar = GrammarOf(GrammarKind::kRegex, "[a-c]{" + n + "}z");
        const std::string text = TextOf(v, Draw(v, grammar, rng, 20));
        EXPECT_EQ(text.size(), static_cast<size_t>(i % 5 + 1)) << text;
        EXPECT_TRUE(v.grammars->Known(grammar)->ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Grammars, ATableThatIsCutOffIsAnError) {
  const Vocabulary v = ByteLevel();
  for (const size_t size : {0u, 8u, 16u, 100u}) {
    auto bytes = std::make_shared<const std::string>(v.table.bytes->substr(0, size));
    const auto grammars = Grammars::Of({"cut " + std::to_string(size), bytes});
    EXPECT_EQ(grammars->Check(GrammarOf(GrammarKind::kRegex, "a")).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Grammars, SentencePieceVocabularies) {
  const Vocabulary v = Load("byte_fallback", "</s>");
  Rng rng(4);
  const std::string text =
      TextOf(v, Draw(v, GrammarOf(GrammarKind::kRegex, "[a-z]{3} [a-z]{2}"), rng, 20));
  EXPECT_EQ(text.size(), 6u) << text;
}

}  // namespace
}  // namespace millrace::text
