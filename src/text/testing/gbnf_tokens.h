// A small vocabulary with hard tokens, and whether the masks of a grammar over it accept a text.
// For tests of GBNF; one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/output_grammar.h"
#include "text/grammars.h"
#include "text/token_table.h"

namespace millrace::text {

// JSON, of the kind that comes with llama.cpp.
inline const std::string kJsonGbnf =
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"
    "array  ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
    "[0-9a-fA-F]{4}))* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)? ws\n"
    "ws     ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

// The 256 bytes, tokens of several characters and of parts of characters, two special tokens, and
// the end.
class GbnfTokens {
 public:
  GbnfTokens() {
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"ab",
                             "ba",
                             "aa",
                             "abc",
                             "  ",
                             "\n\n",
                             "\": ",
                             "\"a",
                             "1.",
                             "00",
                             "e4",
                             ", ",
                             "{\"",
                             "\"}",
                             "[1",
                             "]}",
                             "true",
                             "\xC3",
                             "\xC3\xA9",
                             "\xA9"
                             "a",
                             "a\xC3",
                             "\xE4\xB8",
                             "\x80\xC3",
                             "\n- ",
                             "int ",
                             "(a",
                             ")*",
                             "x = ",
                             "\\n",
                             "\\u00",
                             "bc",
                             "cab"}) {
      texts_.emplace_back(text);
    }
    think_ = Add("<think>", true);
    unthink_ = Add("</think>", false);
    end_ = Add("<end>", true);
    table_.bytes = std::make_shared<const std::string>(Bytes());
    table_.digest = "gbnf tokens";
    grammars_ = Grammars::Of(table_);
  }

  Grammars& grammars() const { return *grammars_; }
  TokenId think() const { return think_; }
  TokenId unthink() const { return unthink_; }
  TokenId end() const { return end_; }
  const std::string& TextOf(TokenId id) const { return texts_[static_cast<size_t>(id)]; }
  TokenId size() const { return static_cast<TokenId>(texts_.size()); }

  std::vector<TokenId> AsBytes(std::string_view text) const {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }
  // Any tokens that spell the text.
  std::vector<TokenId> Somehow(std::string_view text, Rng& rng) const {
    std::vector<TokenId> tokens;
    while (!text.empty()) {
      std::vector<TokenId> fit;
      for (TokenId id = 0; id < think_; ++id) {
        if (text.starts_with(TextOf(id))) fit.push_back(id);
      }
      tokens.push_back(fit[static_cast<size_t>(rng.Between(0, std::ssize(fit) - 1))]);
      text.remove_prefix(TextOf(tokens.back()).size());
    }
    return tokens;
  }

 private:
  TokenId Add(const std::string& text, bool special) {
    texts_.push_back(text);
    special_.push_back(special ? static_cast<TokenId>(texts_.size() - 1) : 0);
    return static_cast<TokenId>(texts_.size() - 1);
  }
  std::string Bytes() const {
    std::string bytes = "mrtable1";
    const auto number = [&bytes](size_t value) {
      for (int shift = 0; shift < 32; shift += 8)
        bytes.push_back(static_cast<char>(value >> shift));
    };
    number(texts_.size());
    number(1);
    number(static_cast<size_t>(end_));
    for (size_t i = 0; i < texts_.size(); ++i) {
      const bool special = std::ranges::count(special_, static_cast<TokenId>(i)) > 0 && i > 0;
      number(texts_[i].size() * 2 + (special ? 1 : 0));
      bytes += texts_[i];
    }
    return bytes;
  }

  std::vector<std::string> texts_;
  std::vector<TokenId> special_;
  TokenId think_ = 0, unthink_ = 0, end_ = 0;
  TokenTable table_;
  std::shared_ptr<Grammars> grammars_;
};

inline const GbnfTokens& Tokens() {
  static const GbnfTokens* const tokens = new GbnfTokens;
  return *tokens;
}

inline std::string Lark(std::string_view text) { return GrammarOf(GrammarKind::kLark, text); }

inline bool Allows(std::span<const uint32_t> mask, TokenId token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

// Whether the masks allow each token and then the end.
inline bool Accepts(const std::string& grammar, const std::vector<TokenId>& tokens) {
  const auto matcher = Tokens().grammars().MatcherOf(grammar);
  std::vector<TokenId> output;
  for (size_t i = 0;; ++i) {
    const auto mask = matcher->Allowed(output);
    if (!mask.ok()) {
      ADD_FAILURE() << mask.status().message();
      return false;
    }
    if (i == tokens.size()) return Allows(*mask, Tokens().end());
    if (!Allows(*mask, tokens[i])) return false;
    output.push_back(tokens[i]);
  }
}

}  // namespace millrace::text
