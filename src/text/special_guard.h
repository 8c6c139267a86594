// SpecialGuard: keeps special-token names in user text from becoming special tokens.
//
// A rendered chat template mixes the template's own "<|im_end|>" with text from users. The template
// must see that text as it is: it may look for "</think>" in it. So while it renders, the
// characters of user text that special tokens begin or end with are replaced by twins:
// noncharacters that the template's comparisons and searches take for the characters themselves
// (rust/src/twins.rs), and that stay what they are on every way into the output. Afterwards each
// special token with a twin in it gets U+FDD0 after its first character, and the twins become
// characters again. Tokenizer::Encode with `guarded` then finds only the template's tokens, and
// drops the mark. So a token counts as the template's only if the template wrote all of its
// punctuation.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace millrace::text {

inline constexpr std::string_view kGuardCharacter = "\xEF\xB7\x90";  // U+FDD0

class SpecialGuard {
 public:
  // Tokens of a single character cannot be split and are not guarded.
  explicit SpecialGuard(const std::vector<std::string>& special_tokens);

  // Puts twins into every string value and object key of `json`; false when there was nothing to
  // replace. A twin that is already there becomes U+FFFD. Of a token of letters alone, each
  // occurrence gets the guard character at once.
  bool Mark(nlohmann::ordered_json& json) const;
  bool Mark(std::string& text) const;

  // Each twin, followed by the character that it stands for.
  const std::string& twins() const { return twins_; }

  // The output of a render, with its twins replaced and what they were part of guarded.
  std::string Guard(std::string_view output) const;

 private:
  void GiveTwins(const std::string& token);
  bool GuardWords(std::string& text) const;
  // Bytes of the longest token at the beginning of `rest`; 0: none.
  size_t TokenAt(std::string_view rest) const;

  std::unordered_set<std::string> tokens_;
  std::unordered_set<std::string> words_;  // tokens in which no character has a twin
  std::set<size_t> sizes_;
  std::vector<bool> first_two_bytes_;  // pairs of bytes that begin a token; most texts contain none
  std::vector<bool> first_bytes_;      // of what Mark replaces
  std::map<std::string, std::string, std::less<>> twin_of_;
  std::map<std::string, std::string, std::less<>> original_of_;
  std::string twins_;
};

}  // namespace millrace::text
