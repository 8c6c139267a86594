// Grammars whose parts end in the middle of tokens. Whatever tokens are drawn from the masks, the
// engine goes on, and the text is the same as if it had come byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "text/ffi.h"
#include "text/grammars.h"
#include "text/testing/words.h"

namespace millrace::text {
namespace {

struct Straddled {
  std::string grammar;
  std::vector<std::string> pieces;  // of its texts, from which tokens are cut
};

std::vector<Straddled> AllStraddled() {
  const auto lark = [](const char* text) { return GrammarOf(GrammarKind::kLark, text); };
  const auto tags = [](const char* text) { return GrammarOf(GrammarKind::kTags, text); };
  const char* two_tags = R"({"structures": [
      {"begin": "<f=a>", "schema": {"type": "boolean"}, "end": "</f>"},
      {"begin": "<f=b>", "schema": {"enum": [7, "</f>"]}, "end": "</f>\n"}], "triggers": ["<f="]})";
  const char* overlapping = R"({"structures": [
      {"begin": "<<a", "schema": {"type": "null"}, "end": ">>"},
      {"begin": "<b", "schema": {"enum": [1]}, "end": ">"}], "triggers": ["<<a", "<", "<b"]})";
  const char* special = R"({"structures": [
      {"begin": "<|call|>{", "schema": {"type": "null"}, "end": "}<|end_call|>"}],
      "triggers": ["<|call|>"]})";
  return {
      {tags(two_tags), {"text <f=a>true</f> more <f=b>7</f>\n<f=b>\"</f>\"</f>\n", "<f=", "</f>x"}},
      {tags(overlapping), {"x<<anull>>y<b1>", "< <<", "<<<a"}},
      {tags(special), {"x<|call|>{null}<|end_call|>y", "<|ca", "ll|>{nu", "ll}<|e", "call|>"}},
      {lark("start: a b\na[lazy]: /(.|\\n)*\\n\\n/\nb: /[0-9]+/ \";\"\n"),
       {"ab\n\n12;", "\n\n1", "x\n"}},
      {lark("start: a b\na[suffix=\"END\"]: /(.|\\n)*/\nb: \"[\" /[a-z]*/ \"]\"\n"),
       {"some END[xy]", "D[", "ENEND[", "E", "N"}},
      {lark("start: a b\na[max_tokens=3]: /[a-z ]*/\nb: \";\" /[0-9]/\n"),
       {"abc def;1", "c;1", ";"}},
      {lark("start: a \";\" \"x\"*\na[max_tokens=2]: %json {\"type\": \"array\"}\n"),
       {"[1, 2];xx", "[[],[{}]]", "];x", "\"a\""}},
      {lark("start: word (\" \" word)* \".\"\nword: /[a-z]+/\n%ignore /#[a-z]#/\n"),
       {"ab #x# cd.", "b #", "x# c", "#y#"}},
      {lark("start: (a | b)*\na: \"<\" %json {\"type\": \"integer\"} \">\"\nb[lazy]: /[^<]*!/\n"),
       {"<12>hi!<-3>", "!<1", "2>h", "3><"}},
      {lark("start: \"a\" REST\nREST: /(?s:.)*/ & /.{2,6}z/\n"), {"abcdz", "az", "zzz"}},
      {GrammarOf(GrammarKind::kJsonSchema,
                 R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "^x+y$"},
                     "b": {"type": "array", "items": {"type": "number"}, "maxItems": 3}},
                     "required": ["a"]})"),
       {"{\"a\": \"xxy\", \"b\": [1.5, -2e3]}", "\"a\":", "y\"}", "[1,", "3]}"}},
      {GrammarOf(GrammarKind::kRegex, "(ab|abc|b)*d?"), {"abcabbd", "abab", "cab", "bd"}},
  };
}

TEST(StraddlingTokens, TheEngineGoesOnWhateverIsDrawn) {
  Rng rng(1);
  for (const Straddled& straddled : AllStraddled()) {
    for (int round = 0; round < 12; ++round) {
      TestWords words;
      words.Add("<|call|>", true);
      words.Add("<|end_call|>", true);
      for (const std::string& piece : straddled.pieces) {
        for (int i = 0; i < 12; ++i) {
          const auto at = static_cast<size_t>(rng.Between(0, std::ssize(piece) - 1));
          words.Add(piece.substr(at, static_cast<size_t>(rng.Between(1, 8))), false);
        }
      }
      const auto grammars = words.Compiler();
      const auto matcher = grammars->MatcherOf(straddled.grammar);
      std::vector<TokenId> tokens;
      for (int i = 0; i < 40; ++i) {
        const auto allowed = matcher->Allowed(tokens);
        ASSERT_TRUE(allowed.ok()) << allowed.status().message() << " after " << words.Shown(tokens)
                                  << " in " << straddled.grammar;
        std::vector<TokenId> may, longer;
        for (size_t t = 0; t < words.size(); ++t) {
          const auto id = static_cast<TokenId>(t);
          if (!May(*allowed, id)) continue;
          may.push_back(id);
          if (t > 256) longer.push_back(id);
        }
        if (may.empty()) break;  // the text cannot go on with these tokens
        const auto& from = !longer.empty() && rng.Between(0, 4) > 0 ? longer : may;
        const TokenId next = from[static_cast<size_t>(rng.Between(0, std::ssize(from) - 1))];
        tokens.push_back(next);
        if (next == TestWords::kEnd) {
          EXPECT_TRUE(matcher->Allowed(tokens).ok());
          break;
        }
      }
    }
  }
}

// Models write the markers that they were trained on as special tokens, and others spell them.
TEST(StraddlingTokens, SpecialTokensOpenAndCloseTagsInEverySpelling) {
  TestWords words;
  const TokenId open = words.Add("<|call|>", true), close = words.Add("<|end_call|>", true);
  const TokenId other = words.Add("<|other|>", true), text = words.Add("x<|ca", false);
  const TokenId rest = words.Add("ll|>{", false), both = words.Add("null}", false);
  const auto grammars = words.Compiler();
  const std::string grammar = GrammarOf(GrammarKind::kTags, R"({"structures": [
      {"begin": "<|call|>{", "schema": {"type": "null"}, "end": "}<|end_call|>"}],
      "triggers": ["<|call|>"]})");
  const auto follows = [&](const std::vector<TokenId>& tokens, TokenId next) {
    const auto matcher = grammars->MatcherOf(grammar);  // the mask is its
    const auto allowed = matcher->Allowed(tokens);
    EXPECT_TRUE(allowed.ok()) << allowed.status().message() << words.Shown(tokens);
    return allowed.ok() && May(*allowed, next);
  };
  EXPECT_TRUE(follows({}, open));
  EXPECT_FALSE(follows({}, other));
  EXPECT_TRUE(follows({'a', 'b'}, open));
  EXPECT_TRUE(follows({'a', open}, '{'));
  EXPECT_FALSE(follows({'a', open}, 'x'));
  EXPECT_TRUE(follows({open, '{', both}, close));
  EXPECT_TRUE(follows({open, '{', both}, '<'));
  EXPECT_FALSE(follows({open, '{', both}, TestWords::kEnd));
  EXPECT_TRUE(follows({open, '{', both, close}, TestWords::kEnd));
  EXPECT_TRUE(follows({text, rest, both, close, 'y', open}, '{'));
  EXPECT_FALSE(follows({text, rest}, 'x'));
}

// What a panic breaks is shared by the sequences of a grammar: the one that meets it, another that
// is under way, and those that begin later go on.
TEST(StraddlingTokens, APanicOfTheEngineCostsNoSequence) {
  const std::string table = TestWords().Table(), grammar = R"(choice:["abc", "abd"])";
  RustBytes error;
  MrtVocabulary* vocabulary = nullptr;
  MrtGrammar* compiled = nullptr;
  const MrtGrammarLimits limits = {1'000'000, 200'000, 50'000, 2'000, 50'000, 500'000};
  ASSERT_EQ(mrt_vocabulary_new(Data(table), table.size(), limits, &vocabulary, error.out()),
            MRT_OK);
  ASSERT_EQ(mrt_grammar_new(vocabulary, Data(grammar), grammar.size(), &compiled, error.out()),
            MRT_OK);
  const auto next = [](MrtMatcher* matcher, const std::vector<uint32_t>& tokens) {
    RustBytes failed;
    std::vector<uint32_t> words(9);
    int32_t any = 0;
    if (!tokens.empty()) {
      EXPECT_EQ(mrt_matcher_consume(matcher, tokens.data(), tokens.size(), failed.out()), MRT_OK);
    }
    EXPECT_EQ(mrt_matcher_mask(matcher, words.data(), words.size(), &any, failed.out()), MRT_OK);
    std::string may;
    for (TokenId t = 0; t < 256; ++t) {
      if (May(words, t)) may += static_cast<char>(t);
    }
    return may;
  };
  MrtMatcher *one = nullptr, *two = nullptr, *three = nullptr;
  mrt_matcher_new(compiled, &one, error.out());
  mrt_matcher_new(compiled, &two, error.out());
  EXPECT_EQ(next(one, {'a'}), "b");
  EXPECT_EQ(next(two, {'a', 'b'}), "cd");
  mrt_matcher_break_for_test(one);
  EXPECT_EQ(next(one, {}), "b");
  EXPECT_EQ(next(one, {'b'}), "cd");
  mrt_matcher_break_for_test(one);
  EXPECT_EQ(next(one, {'c'}), "");
  EXPECT_EQ(next(two, {}), "cd");
  mrt_matcher_new(compiled, &three, error.out());
  EXPECT_EQ(next(three, {'a', 'b'}), "cd");
  for (MrtMatcher* matcher : {one, two, three}) mrt_matcher_free(matcher);
  mrt_grammar_free(compiled);
  mrt_vocabulary_free(vocabulary);
}

TEST(StraddlingTokens, WhatWouldBeTakenBackOrIgnoredIsRefused) {
  const auto grammars = TestWords().Compiler();
  const auto refusal = [&grammars](GrammarKind kind, const std::string& text) {
    const Status status = grammars->Check(GrammarOf(kind, text));
    EXPECT_NE(status.code(), StatusCode::kInternal) << status.message();
    return status.ok() ? "" : status.message();
  };
  const auto lark = [&refusal](const char* text) { return refusal(GrammarKind::kLark, text); };
  EXPECT_NE(lark("start: a \"b\"\na[stop=\"x\"]: /.*/\n").find("\"stop\" of the rule a"),
            std::string::npos);
  EXPECT_NE(lark("start: a\na[max_tokens=3, temperature=0.5]: /.*/\n").find("temperature"),
            std::string::npos);
  EXPECT_EQ(lark("start: a\na[capture, max_tokens=3]: /[a-z]*/\n"), "");
  EXPECT_EQ(lark("start: \"a[stop=1]\"\n"), "");
  const char* within = R"({"structures": [{"begin": "abc", "end": ""}, {"begin": "b", "end": ""}],
                           "triggers": ["abc", "b"]})";
  EXPECT_NE(refusal(GrammarKind::kTags, within).find("would come within"), std::string::npos);
}

}  // namespace
}  // namespace millrace::text
