// Grammars in GBNF: errors, limits, tokens, and what becomes of them. gbnf_meaning_test.cc has
// their meaning.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "core/output_grammar.h"
#include "text/grammars.h"
#include "text/testing/gbnf_tokens.h"
#include "text/token_table.h"

namespace millrace::text {
namespace {

std::string ErrorOf(std::string_view gbnf) {
  return std::string(Tokens().grammars().Check(Lark(gbnf)).message());
}

TEST(Gbnf, AnErrorNamesThePlaceAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= \"a", "line 1, column 10: a text without its closing quote"},
      {"root ::= \"a\"\nx = \"b\"", "line 2, column 3: expected ::= or a symbol, but there is '='"},
      {"root ::= (\"a\"", "line 1, column 14: expected ')', but the grammar ends"},
      {"root ::= \"a\" )",
       "line 1, column 14: expected a symbol or the next rule, but there is ')'"},
      {"root ::= [a-z", "line 1, column 10: a character class without its closing bracket"},
      {"root ::= []", "line 1, column 10: a character class without characters"},
      {"root ::= [z-a]", "line 1, column 11: the range ends before it begins"},
      {"root ::= \"\\q\"", "line 1, column 11: no such escape: \\q"},
      {"root ::= \"\\x4\"", "line 1, column 11: \\x needs 2 hexadecimal digits"},
      {"root ::= \"\\U00110000\"", "line 1, column 11: beyond the last code point"},
      {"root ::= \"\\uD83D\"", "line 1, column 11: half of a surrogate pair"},
      {"root ::= \"a\"\nroot2 ::= b c\nb ::= \"x\"",
       "line 2, column 13: the rule \"c\" is not defined"},
      {"start ::= \"a\"", "line 1, column 1: there is no rule \"root\""},
      {"root ::= *", "line 1, column 10: there is nothing before '*' to repeat"},
      {"root ::= \"a\"{3,2}", "line 1, column 14: at least 3, but at most 2"},
      {"root ::= \"a\"{x}", "line 1, column 14: expected a count, but there is 'x'"},
      {"root ::= 'a'", "line 1, column 10: expected a symbol; a text is in double quotes"},
      {"root ::= \"a\" root", "no text matches \"root\""},
      {"root ::= <[999999]>", "there is no token 999999"},
      {"root ::= <nothing>", "<nothing> is not one token of this model"},
      {"root ::= <[x]>", "line 1, column 10: expected a token's id"},
      {"<root> ::= <a>", "line 1, column 1: expected the name of a rule, but there is '<'"},
  };
  for (const auto& [gbnf, error] : cases) {
    const std::string message = ErrorOf(gbnf);
    EXPECT_TRUE(message.starts_with(std::string("as GBNF, ") + error)) << message;
    EXPECT_NE(message.find("; as Lark, "), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 300u) << message;
  }
}

TEST(Gbnf, LarkStaysLark) {
  EXPECT_TRUE(Tokens().grammars().Check(Lark("start: \"a\" | \"::=\"\n")).ok());
  // What only looks like a rule of GBNF.
  EXPECT_TRUE(Tokens().grammars().Check(Lark("start: A\nA: /x ::= y/\n")).ok());
  const std::string message = ErrorOf("start: nothing");
  EXPECT_EQ(message.find("GBNF"), std::string::npos) << message;
}

TEST(Gbnf, WhatXgrammarTakesBeyondTheDocumentation) {
  for (const char* gbnf : {"root ::= \"a\"\n  | \"b\"\n", "root ::= \"a\"\n  x\nx ::= [\\^\\-a]\n",
                           "root ::= \"\\'\\/\\b\\f\\v\\0\" | \"b\""}) {
    EXPECT_TRUE(Accepts(
        Lark(gbnf),
        Tokens().AsBytes(std::string_view(gbnf).find("x ::=") == std::string_view::npos ? "b"
                                                                                        : "a^")))
        << gbnf;
  }
}

// A limit on work must not meet what people write.
TEST(Gbnf, UnpleasantGrammarsEndSoon) {
  std::string deep = "root ::= ", chain = "root ::= r0\n", doubled = "root ::= d0\n",
              many = "root ::= ";
  for (int i = 0; i < 2000; ++i) deep += "(";
  for (int i = 0; i < 3000; ++i) many += "\"text" + std::to_string(i) + "\" | ";
  for (int i = 0; i < 150; ++i) {
    chain += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + " | \"b\"\n";
  }
  for (int i = 0; i < 60; ++i) {
    const std::string next = "d" + std::to_string(i + 1);
    doubled += "d" + std::to_string(i) + " ::= " + next + " " + next + " root?\n";
  }
  const std::string texts[] = {deep,
                               chain + "r150 ::= \"c\"",
                               doubled + "d60 ::= \"x\" | \"y\"",
                               many + "\"end\"",
                               "root ::= ((((\"a\"{1000}){1000}){1000}){1000}){1000}",
                               "root ::= (((\"a\"*)*)*)* \"b\"",
                               "root ::= ([ab]* \"a\" [ab]{20} root | \"c\")",
                               "root ::= root root root | root* | \"a\"?"};
  for (const std::string& text : texts) {
    const auto begun = std::chrono::steady_clock::now();
    (void)Tokens().grammars().Check(Lark(text)).ok();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10))
        << text.substr(0, 60);
  }
}

// Thousands of characters of a string, and thousands of elements of a list, are no limit.
TEST(Gbnf, ALongAnswerMeetsNoLimit) {
  std::string text = "{\"a\": [";
  for (int i = 0; i < 3000; ++i) text += "{\"key\": -1.5e3}, ";
  text += "\"" + std::string(20'000, 'x') + "\"]}";
  const std::string grammar = Lark(kJsonGbnf);
  const auto matcher = Tokens().grammars().MatcherOf(grammar);
  Rng rng(1);
  std::vector<TokenId> output;
  for (const TokenId token : Tokens().Somehow(text, rng)) {
    if (output.size() % 97 == 0) {
      const auto mask = matcher->Allowed(output);
      ASSERT_TRUE(mask.ok()) << mask.status().message();
      ASSERT_TRUE(Allows(*mask, token));
    }
    output.push_back(token);
  }
  const auto mask = matcher->Allowed(output);
  ASSERT_TRUE(mask.ok()) << mask.status().message();
  EXPECT_TRUE(Allows(*mask, Tokens().end()));
}

TEST(Gbnf, TokensAreReferredToByTheirTextOrId) {
  const std::vector<std::string> grammars = {
      "root ::= <think> t </think> [a-z]+\nt ::= !</think>*\n",
      "root ::= <[" + std::to_string(Tokens().think()) + "]> t <[" +
          std::to_string(Tokens().unthink()) + "]> [a-z]+\nt ::= !<[" +
          std::to_string(Tokens().unthink()) + "]>*\n"};
  for (const std::string& gbnf : grammars) {
    const std::string grammar = Lark(gbnf);
    ASSERT_TRUE(Tokens().grammars().Check(grammar).ok()) << ErrorOf(gbnf);
    std::vector<TokenId> answer = {Tokens().think(), 'x', '>', Tokens().unthink(), 'o', 'k'};
    EXPECT_TRUE(Accepts(grammar, answer));
    EXPECT_FALSE(Accepts(grammar, {'x', Tokens().unthink(), 'o'}));
    EXPECT_FALSE(Accepts(grammar, {Tokens().think(), 'x', 'o'}));
    answer.back() = Tokens().think();
    EXPECT_FALSE(Accepts(grammar, answer));
  }
  // In the vocabulary that stands for all others, every token exists.
  const auto trial = Grammars::Of(ByteTable());
  for (const std::string& gbnf : grammars) EXPECT_TRUE(trial->Check(Lark(gbnf)).ok());
}

// Older workers and journals know Lark only.
TEST(Gbnf, BecomesLarkForTheRest) {
  Grammars& grammars = Tokens().grammars();
  const std::string gbnf = Lark("root ::= \"a\" root | \"b\"");
  ASSERT_TRUE(grammars.Check(gbnf).ok());
  const std::string lark = grammars.WithoutGbnf(gbnf);
  EXPECT_TRUE(lark.starts_with("lark:start: ")) << lark;
  EXPECT_EQ(grammars.WithoutGbnf(lark), lark);
  EXPECT_TRUE(grammars.Known(lark)->ok());
  EXPECT_TRUE(Accepts(lark, Tokens().AsBytes("aab")));
  const std::string reasoned = GrammarOf(
      GrammarKind::kReasoned,
      R"({"begin": "<t>", "end": "</t>", "begun": true, "grammar": "lark:root ::= \"a\" | \"b\""})");
  ASSERT_TRUE(grammars.Check(reasoned).ok());
  EXPECT_EQ(grammars.WithoutGbnf(reasoned).find("::="), std::string::npos);
}

}  // namespace
}  // namespace millrace::text
