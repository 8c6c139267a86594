#include "text/special_guard.h"

#include <utility>

namespace millrace::text {
namespace {

size_t PairOf(std::string_view text) {
  return static_cast<uint8_t>(text[0]) * 256u + static_cast<uint8_t>(text[1]);
}

// Bytes of the character that begins valid UTF-8 text.
size_t FirstCharacter(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && (static_cast<uint8_t>(text[size]) & 0xC0) == 0x80) ++size;
  return size;
}

}  // namespace

SpecialGuard::SpecialGuard(const std::vector<std::string>& special_tokens)
    : first_two_bytes_(256 * 256) {
  for (const std::string& token : special_tokens) {
    if (token.empty() || FirstCharacter(token) == token.size()) continue;
    tokens_.insert(token);
    sizes_.insert(token.size());
    first_two_bytes_[PairOf(token)] = true;
  }
}

bool SpecialGuard::TokenAt(std::string_view rest) const {
  if (rest.size() < 2 || !first_two_bytes_[PairOf(rest)]) return false;
  for (size_t size : sizes_) {
    if (size > rest.size()) return false;
    if (tokens_.contains(std::string(rest.substr(0, size)))) return true;
  }
  return false;
}

bool SpecialGuard::Guard(std::string& text) const {
  std::string guarded;
  size_t copied = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (!TokenAt(rest)) continue;
    const size_t end = i + FirstCharacter(rest);
    guarded.append(text, copied, end - copied).append(kGuardCharacter);
    copied = end;
  }
  if (copied == 0) return false;
  guarded.append(text, copied);
  text = std::move(guarded);
  return true;
}

bool SpecialGuard::Guard(nlohmann::ordered_json& json) const {
  if (json.is_string()) return Guard(json.get_ref<std::string&>());
  bool found = false;
  if (json.is_array()) {
    for (auto& item : json) found |= Guard(item);
  } else if (json.is_object()) {
    nlohmann::ordered_json renamed = nlohmann::ordered_json::object();
    bool key_found = false;
    for (auto& [key, value] : json.items()) {
      std::string name = key;
      key_found |= Guard(name);
      found |= Guard(value);
      renamed[name] = value;
    }
    if (key_found) json = std::move(renamed);
    found |= key_found;
  }
  return found;
}

}  // namespace millrace::text
