#include "text/special_guard.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace millrace::text {
namespace {

constexpr size_t kTwinsMax = 31;  // U+FDD1 to U+FDEF
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

size_t PairOf(std::string_view text) {
  return static_cast<uint8_t>(text[0]) * 256u + static_cast<uint8_t>(text[1]);
}

// Bytes of the character that begins valid UTF-8 text.
size_t FirstCharacter(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && (static_cast<uint8_t>(text[size]) & 0xC0) == 0x80) ++size;
  return size;
}

std::vector<std::string> CharactersOf(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t size = FirstCharacter(text.substr(at));
    characters.emplace_back(text.substr(at, size));
    at += size;
  }
  return characters;
}

// Whether templates may treat it as a letter, a digit or white space. Punctuation beyond ASCII is
// that of known families; a letter with a twin would only lose its case.
bool IsWordOrSpace(std::string_view character) {
  if (character.size() > 1) return false;
  const auto byte = static_cast<unsigned char>(character[0]);
  return std::isalnum(byte) != 0 || byte == '_' || std::isspace(byte) != 0;
}

// The first bytes of all twins, which have three.
constexpr std::string_view kTwinLead = "\xEF\xB7";

}  // namespace

SpecialGuard::SpecialGuard(const std::vector<std::string>& special_tokens)
    : first_two_bytes_(256 * 256), first_bytes_(256) {
  for (const std::string& token : special_tokens) {
    if (token.empty() || FirstCharacter(token) == token.size()) continue;
    tokens_.insert(token);
    sizes_.insert(token.size());
    first_two_bytes_[PairOf(token)] = true;
    GiveTwins(token);
  }
}

// To its first, second and last character: a text that has none of them makes no token, also when
// the template writes the rest.
void SpecialGuard::GiveTwins(const std::string& token) {
  const std::vector<std::string> characters = CharactersOf(token);
  bool has_twin = false;
  for (const std::string& character : {characters[0], characters[1], characters.back()}) {
    if (IsWordOrSpace(character)) continue;
    if (!twin_of_.contains(character) && twin_of_.size() < kTwinsMax) {
      const std::string twin = {'\xEF', '\xB7', static_cast<char>(0x91 + twin_of_.size())};
      twin_of_[character] = twin;
      original_of_[twin] = character;
      first_bytes_[static_cast<uint8_t>(character[0])] = true;
      first_bytes_[static_cast<uint8_t>(twin[0])] = true;
      twins_ += twin + character;
    }
    has_twin |= twin_of_.contains(character);
  }
  if (!has_twin) words_.insert(token);
}

size_t SpecialGuard::TokenAt(std::string_view rest) const {
  if (rest.size() < 2 || !first_two_bytes_[PairOf(rest)]) return 0;
  size_t found = 0;
  for (size_t size : sizes_) {
    if (size > rest.size()) break;
    if (tokens_.contains(std::string(rest.substr(0, size)))) found = size;
  }
  return found;
}

bool SpecialGuard::GuardWords(std::string& text) const {
  std::string guarded;
  size_t copied = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at);
    const size_t size = TokenAt(rest);
    if (size == 0 || !words_.contains(std::string(rest.substr(0, size)))) continue;
    const size_t end = at + FirstCharacter(rest);
    guarded.append(text, copied, end - copied).append(kGuardCharacter);
    copied = end;
  }
  if (copied == 0) return false;
  text = guarded.append(text, copied);
  return true;
}

bool SpecialGuard::Mark(std::string& text) const {
  bool found = !words_.empty() && GuardWords(text);
  std::string marked;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const std::string_view rest = std::string_view(text).substr(at);
    const std::string_view character = rest.substr(0, FirstCharacter(rest));
    std::string_view replaced;
    if (auto twin = twin_of_.find(character); twin != twin_of_.end()) replaced = twin->second;
    if (original_of_.contains(character)) replaced = kReplacement;
    if (!replaced.empty()) {
      marked.append(text, copied, at - copied).append(replaced);
      copied = at + character.size();
    }
    at += character.size();
  }
  if (copied == 0) return found;
  text = marked.append(text, copied);
  return true;
}

bool SpecialGuard::Mark(nlohmann::ordered_json& json) const {
  if (json.is_string()) return Mark(json.get_ref<std::string&>());
  bool found = false;
  if (json.is_array()) {
    for (auto& item : json) found |= Mark(item);
  } else if (json.is_object()) {
    nlohmann::ordered_json renamed = nlohmann::ordered_json::object();
    bool key_found = false;
    for (auto& [key, value] : json.items()) {
      std::string name = key;
      key_found |= Mark(name);
      found |= Mark(value);
      renamed[name] = value;
    }
    if (key_found) json = std::move(renamed);
    found |= key_found;
  }
  return found;
}

std::string SpecialGuard::Guard(std::string_view output) const {
  std::string text;
  std::vector<std::pair<size_t, size_t>> users;  // ranges of characters that had twins
  text.reserve(output.size());
  for (size_t at = 0; at < output.size();) {
    const size_t next = std::min(output.find(kTwinLead, at), output.size());
    text += output.substr(at, next - at);
    if (next == output.size()) break;
    const std::string_view character = output.substr(next, kGuardCharacter.size());
    const auto original = original_of_.find(character);
    if (original == original_of_.end()) {
      text += character;
    } else {
      users.emplace_back(text.size(), text.size() + original->second.size());
      text += original->second;
    }
    at = next + character.size();
  }
  std::string guarded;
  size_t copied = 0;
  auto user = users.begin();
  for (size_t at = 0; at < text.size() && user != users.end(); ++at) {
    while (user != users.end() && user->second <= at) ++user;
    const std::string_view rest = std::string_view(text).substr(at);
    const size_t size = TokenAt(rest);
    if (size == 0 || user == users.end() || user->first >= at + size) continue;
    const size_t end = at + FirstCharacter(rest);
    guarded.append(text, copied, end - copied).append(kGuardCharacter);
    copied = end;
  }
  return guarded.append(text, copied);
}

}  // namespace millrace::text
