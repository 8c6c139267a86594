// SpecialGuard: keeps special-token names in user text from becoming special tokens.
//
// A rendered chat template mixes the template's own "<|im_end|>" with text from users. Guarding
// puts U+FDD0 (a noncharacter) after the first character of every special token inside user text.
// Tokenizer::Encode with `guarded` then finds only the template's tokens and drops the mark.
// Immutable; any thread.
#pragma once

#include <cstdint>
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

  // Marks every special token in `text`; false when there is none.
  bool Guard(std::string& text) const;
  // The same for every string value and object key in `json`.
  bool Guard(nlohmann::ordered_json& json) const;

 private:
  bool TokenAt(std::string_view rest) const;

  std::unordered_set<std::string> tokens_;
  std::set<size_t> sizes_;
  std::vector<bool> first_two_bytes_;  // pairs of bytes that begin a token; most texts contain none
};

}  // namespace millrace::text
