// A vocabulary for tests: the 256 bytes, an end, and the tokens that a test adds. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/grammars.h"

namespace millrace::text {

class TestWords {
 public:
  static constexpr TokenId kEnd = 256;

  TestWords() {
    for (int byte = 0; byte < 256; ++byte) Add(std::string(1, static_cast<char>(byte)), false);
    Add("<|end|>", true);
  }
  // The known token if there is one.
  TokenId Add(const std::string& text, bool special) {
    const auto id = static_cast<TokenId>(tokens_.size());
    const auto [known, added] = ids_.try_emplace({special, text}, id);
    if (added) tokens_.push_back({text, special});
    return known->second;
  }
  size_t size() const { return tokens_.size(); }
  const std::string& TextOf(TokenId id) const { return tokens_[static_cast<size_t>(id)].text; }
  bool IsSpecial(TokenId id) const { return tokens_[static_cast<size_t>(id)].special; }
  std::string Shown(const std::vector<TokenId>& tokens) const {
    std::string out;
    for (const TokenId id : tokens) out += (IsSpecial(id) ? "!" : "") + TextOf(id) + "|";
    return out;
  }

  // Of the tokens so far.
  std::shared_ptr<Grammars> Compiler() const {
    const std::string bytes = Table();
    return Grammars::Of({bytes, std::make_shared<const std::string>(bytes)});
  }
  std::string Table() const {
    std::string bytes = "mrtable1";
    const auto put = [&bytes](size_t number) {
      for (int shift = 0; shift < 32; shift += 8) {
        bytes.push_back(static_cast<char>(number >> shift));
      }
    };
    put(tokens_.size());
    put(1);
    put(kEnd);
    for (const Token& token : tokens_) {
      put(token.text.size() * 2 + (token.special ? 1 : 0));
      bytes += token.text;
    }
    return bytes;
  }

 private:
  struct Token {
    std::string text;
    bool special = false;
  };
  std::vector<Token> tokens_;
  std::map<std::pair<bool, std::string>, TokenId> ids_;
};

// `allowed`: as TokenMatcher::Allowed returns it.
inline bool May(std::span<const uint32_t> allowed, TokenId token) {
  if (allowed.empty()) return true;
  return (allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace millrace::text
