// Grammars in GBNF: the masks against what the notation's documentation says (testing/gbnf.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "text/testing/gbnf.h"
#include "text/testing/gbnf_tokens.h"

namespace millrace::text {
namespace {

// An output that the masks allow, if it ended.
std::optional<std::string> DrawOf(const std::string& grammar, Rng& rng) {
  const auto matcher = Tokens().grammars().MatcherOf(grammar);
  std::vector<TokenId> output;
  std::string text;
  while (text.size() < 60) {
    const auto mask = matcher->Allowed(output);
    if (!mask.ok()) {
      ADD_FAILURE() << mask.status().message();
      return std::nullopt;
    }
    if (Allows(*mask, Tokens().end()) && rng.Between(0, 3) == 0) return text;
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < Tokens().think(); ++id) {
      if (Allows(*mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) {
      EXPECT_TRUE(Allows(*mask, Tokens().end())) << "nothing may follow " << text;
      return text;
    }
    output.push_back(allowed[static_cast<size_t>(rng.Between(0, std::ssize(allowed) - 1))]);
    text += Tokens().TextOf(output.back());
  }
  return std::nullopt;
}

std::string Mutated(std::string_view text, const std::u32string& alphabet, Rng& rng) {
  std::u32string out = CodePoints(text);
  const auto any = [&] {
    return alphabet[static_cast<size_t>(rng.Between(0, std::ssize(alphabet) - 1))];
  };
  for (auto edits = rng.Between(1, 2); edits > 0; --edits) {
    const auto place = static_cast<size_t>(rng.Between(0, std::ssize(out)));
    const auto edit = rng.Between(0, 3);
    if (edit == 0 || place == out.size()) {
      out.insert(out.begin() + static_cast<int64_t>(place), any());
    } else if (edit == 1) {
      out.erase(place, 1);
    } else if (edit == 2) {
      out[place] = any();
    } else {
      out.insert(place, out.substr(place, 2));
    }
  }
  if (out.size() > 60) out.resize(60);
  return Utf8(out);
}

struct Counts {
  int grammars = 0, members = 0, others = 0, drawn = 0;
};

// Compares the masks of one grammar with its meaning.
void Compare(const std::string& gbnf, uint64_t seed, Counts& counts) {
  SCOPED_TRACE(gbnf);
  const std::string grammar = Lark(gbnf);
  Rng rng(seed);
  GbnfReading reading(gbnf);
  std::vector<std::string> texts = {""};
  for (int i = 0; i < 20; ++i) {
    if (auto text = reading.Draw(rng, 12)) texts.push_back(*std::move(text));
  }
  const Status compiled = Tokens().grammars().Check(grammar);
  if (!compiled.ok()) {
    // A grammar that only the empty text matches is refused, as is one that no text matches.
    for (const std::string& text : texts) EXPECT_TRUE(text.empty()) << compiled.message();
    return;
  }
  ++counts.grammars;
  const std::u32string alphabet = reading.Alphabet();
  const size_t members = texts.size();
  for (int i = 0; i < 20; ++i) {
    const auto of = static_cast<size_t>(rng.Between(0, static_cast<int64_t>(members) - 1));
    texts.push_back(Mutated(texts[of], alphabet, rng));
  }
  for (int i = 0; i < 10; ++i) {
    std::string text;
    for (auto left = rng.Between(0, 6); left > 0; --left) text = Mutated(text, alphabet, rng);
    texts.push_back(text);
  }
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  for (const std::string& text : texts) {
    const bool member = reading.Matches(text);
    ++(member ? counts.members : counts.others);
    ASSERT_EQ(Accepts(grammar, Tokens().AsBytes(text)), member) << "byte by byte: " << text;
    ASSERT_EQ(Accepts(grammar, Tokens().Somehow(text, rng)), member) << "in tokens: " << text;
  }
  for (int i = 0; i < 8; ++i) {
    const auto text = DrawOf(grammar, rng);
    if (!text) continue;
    ++counts.drawn;
    ASSERT_TRUE(reading.Matches(*text)) << "drawn: " << *text;
  }
}

// One for each feature that the documentation names, and for what is hard about it.
const std::vector<std::string> kFeatures = {
    R"g(root ::= "hello")g",
    R"g(root ::= "a" | "b" | "ab")g",
    R"g(root ::= "a" "b" "c")g",
    R"g(root ::= ("a" | "b") "c")g",
    R"g(root ::= "a"* "b")g",
    R"g(root ::= "a"+)g",
    R"g(root ::= "a"? "b"?)g",
    R"g(root ::= "ab"{3})g",
    R"g(root ::= "a"{2,})g",
    R"g(root ::= "a"{2,4} "a")g",
    R"g(root ::= "a"{0,3} "b"{0})g",
    R"g(root ::= [a-c]{ 1 , 2 })g",
    R"g(root ::= [a-cx-z0]+)g",
    R"g(root ::= [^a-z\n]+)g",
    R"g(root ::= [a-] [-a] [a\-c] [\]\[])g",
    R"g(root ::= [^\]] "]")g",
    R"g(root ::= . . "a")g",
    R"g(root ::= .* "end")g",
    R"g(root ::= "\x41\u00e9\U0001F600")g",
    R"g(root ::= [\x41-\x43\u4e00-\u4eff\U0001F600-\U0001F64F]+)g",
    R"g(root ::= "\n\r\t\\\"\[\]\-")g",
    R"g(root ::= [\n\r\t\\"]+)g",
    "root ::= [\xE3\x81\x81-\xE3\x82\x9F]+ \"\xC3\xA9\"",
    "# a comment\nroot ::= a # another\n  # and one\na ::= \"x\" # \"::=\"\n",
    "root ::= (\n  \"a\" # first\n  \"b\"\n  | \"c\"\n)\n",
    "root ::= \"a\" |\n  \"b\" |\n\n  \"c\"\n",
    "root ::=\n  \"a\" b\nb ::= \"c\"\r\n",
    "root ::= a-b a_b A1\na-b ::= \"1\"\na_b ::= \"2\"\nA1 ::= \"3\"",
    R"g(root ::= "a" | )g",
    R"g(root ::= ("a" | ) "b" ( | "c"))g",
    R"g(root ::= () "a" "")g",
    "root ::= a\na ::= \"1\"\na ::= \"2\"",
    R"g(root ::= ("a"*)* "b")g",
    R"g(root ::= (("a" | "b"){2}){1,2})g",
    R"g(root ::= ("a" | "ab") ("c" | "bc"))g",
    R"g(root ::= "a" root "b" | "c")g",
    R"g(root ::= "a" root | "b")g",
    R"g(root ::= root "a" | "b")g",
    R"g(root ::= root root | "a" | "b" root)g",
    R"g(root ::= "(" root ")" root | )g",
    "root ::= a b\na ::= \"x\" a | \"\"\nb ::= \"x\"? b \"y\" | \"y\"",
    "root ::= x y\nx ::= [a-z]+\ny ::= [a-z0-9]* z\nz ::= \"(\" z \")\" | [0-9]+",
    "root ::= ws v ws\nws ::= [ \\n]*\nv ::= \"[\" ws (v (\",\" ws v)*)? \"]\" ws | [0-9]+ ws",
    "root ::= w (\" \" w)* t\nw ::= [a-z]+\nt ::= \"(\" t \")\" | [a-z ]+",
    "root ::= key \"=\" e\nkey ::= \"if\" | \"in\" | [a-z]+\ne ::= key | \"(\" e \")\"",
    "root ::= a | b\na ::= \"x\" b \"y\"\nb ::= \"z\" | \"w\" a \"v\"",
    "root ::= \"a\" b\nb ::= \"b\" root | \"c\"",
    "root ::= p | q\np ::= \"a\" p \"b\" | \"ab\"\nq ::= \"a\" q \"bb\" | \"abb\"",
    "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"a\" | \"b\" | \"\"",
    "root ::= s\ns ::= s \"+\" s | [0-9]",
    "root ::= a a\na ::= \"\" | \"x\" | \"(\" a \")\"",
    "root ::= (a \",\")* a\na ::= \"x\" | \"[\" root \"]\"",
    "root ::= \"\xC3\xA9\"* \"\xC3\xA8\" b\nb ::= \"(\" b \")\" | [\xC3\xA0-\xC3\xBF]*",
    "root ::= a{2,3} [0-9]{0,2}\na ::= \"<\" a \">\" | [0-9]+",
    "root ::= \"a\" | dead\ndead ::= \"b\" dead",
    "root ::= \"a\" (\"b\" dead | \"c\")\ndead ::= \"x\" dead \"y\" | dead dead",
};

// Of the same kinds as those that come with llama.cpp, in our own words.
const std::vector<std::string> kKnown = {
    kJsonGbnf,
    // arithmetic
    "root ::= (expr \"=\" ws term \"\\n\")+\n"
    "expr ::= term ([-+*/] ws term)*\n"
    "term ::= ident | num | \"(\" ws expr \")\" ws\n"
    "ident ::= [a-z] [a-z0-9_]* ws\n"
    "num ::= [0-9]+ ws\n"
    "ws ::= [ \\t\\n]*\n",
    // chess
    "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")*\n"
    "move ::= (pawn | piece | castle) [+#]?\n"
    "piece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
    "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
    "castle ::= \"O-O\" \"-O\"?\n",
    // a list
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
    // a little C
    "root ::= (declaration)*\n"
    "declaration ::= type name \"(\" parameter? \")\" \"{\" statement* \"}\"\n"
    "type ::= \"int\" ws | \"float\" ws | \"char\" ws\n"
    "name ::= [a-zA-Z_] [a-zA-Z_0-9]*\n"
    "parameter ::= type name\n"
    "statement ::= type name ws \"=\" ws expression \";\" | name ws \"=\" ws expression \";\" |\n"
    "  \"return\" ws expression \";\" | \"while\" \"(\" condition \")\" \"{\" statement* \"}\"\n"
    "condition ::= expression (\"==\" | \"<\") expression\n"
    "expression ::= term ((\"+\" | \"-\") term)*\n"
    "term ::= factor ((\"*\" | \"/\") factor)*\n"
    "factor ::= name | number | \"(\" expression \")\" | name \"(\" (expression (\",\" ws "
    "expression)*)? \")\"\n"
    "number ::= [0-9]+\nws ::= [ \\t\\n]+\n",
    // SQL, as in vLLM's and SGLang's examples
    "root ::= select_statement\n"
    "select_statement ::= \"SELECT \" column \" from \" table \" where \" condition\n"
    "column ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 \"\n"
    "condition ::= column \"= \" number\nnumber ::= \"1 \" | \"2 \"\n",
    // white space by recursion
    "root ::= \"[\" ws (item (\",\" ws item)*)? \"]\" ws\n"
    "item ::= [0-9]+ ws | root\nws ::= ([ \\t\\n] ws)?\n",
};

class GrammarMaker {
 public:
  explicit GrammarMaker(uint64_t seed) : rng_(seed) {}
  std::string Make() {
    rules_ = rng_.Between(1, 4);
    std::string out;
    for (int64_t rule = 0; rule < rules_; ++rule) {
      // A rule would go on in the next line after a bar.
      out += NameOf(rule) + " ::= " + Body(3) + "\"\"\n";
    }
    return out;
  }

 private:
  static std::string NameOf(int64_t rule) {
    return rule == 0 ? "root" : "r-" + std::to_string(rule);
  }
  std::string Pick(std::span<const char* const> of) {
    return of[static_cast<size_t>(rng_.Between(0, std::ssize(of) - 1))];
  }
  std::string Body(int depth) {
    std::string out;
    for (auto alternatives = rng_.Between(1, 3); alternatives > 0; --alternatives) {
      for (auto items = rng_.Between(rng_.Between(0, 4) == 0 ? 0 : 1, 3); items > 0; --items) {
        out += Item(depth) + " ";
      }
      if (alternatives > 1) out += "| ";
    }
    return out;
  }
  std::string Item(int depth) {
    static constexpr std::array kTexts = {"\"a\"", "\"b\"", "\"ab\"",  "\"abc\"", "\" \"",
                                          "\"(\"", "\")\"", "\"\\n\"", "\"é\"",   "\"aa\""};
    static constexpr std::array kClasses = {"[a-c]", "[^a]", "[ab]", "[ \\n]", "[^b\\n]", "[à-ü]"};
    static constexpr std::array kSigns = {"*", "+", "?", "{2}", "{1,2}", "{2,}", "{0,3}"};
    std::string out;
    const auto kind = rng_.Between(0, depth > 0 ? 9 : 6);
    if (kind <= 3) {
      out = Pick(kTexts);
    } else if (kind <= 5) {
      out = Pick(kClasses);
    } else if (kind <= 7) {
      out = NameOf(rng_.Between(0, rules_ - 1));
    } else {
      out = "(" + Body(depth - 1) + ")";
    }
    if (rng_.Between(0, 3) == 0) out += Pick(kSigns);
    return out;
  }

  Rng rng_;
  int64_t rules_ = 1;
};

TEST(Gbnf, TwoHundredGrammarsMeanWhatTheNotationSays) {
  Counts counts;
  for (size_t i = 0; i < kFeatures.size() && !HasFailure(); ++i) Compare(kFeatures[i], i, counts);
  EXPECT_EQ(counts.grammars, std::ssize(kFeatures));
  for (size_t i = 0; i < kKnown.size() && !HasFailure(); ++i) Compare(kKnown[i], i, counts);
  for (uint64_t seed = 0; counts.grammars < 200 && !HasFailure(); ++seed) {
    Compare(GrammarMaker(seed).Make(), seed, counts);
  }
  EXPECT_EQ(counts.grammars, 200);
  EXPECT_GT(counts.members, 2000);
  EXPECT_GT(counts.others, 2000);
  EXPECT_GT(counts.drawn, 400);
}

}  // namespace
}  // namespace millrace::text
