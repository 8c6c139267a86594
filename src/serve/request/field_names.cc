#include "serve/request/field_names.h"

#include <cctype>
#include <utility>

namespace millrace::serve {
namespace {

constexpr std::string_view kPathMarks = "_.[";

bool IsPathCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '[' ||
         c == ']';
}

// The length of the path that `text` begins with, without the point that ends a sentence.
size_t PathLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && IsPathCharacter(text[length])) ++length;
  while (length > 0 && text[length - 1] == '.') --length;
  return length;
}

// The end of the string in quotation marks that `text` begins with.
size_t QuotedLength(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

}  // namespace

void FieldNames::Add(std::string chat, std::string client) {
  names_.insert_or_assign(std::move(chat), std::move(client));
}

std::string FieldNames::Of(std::string_view chat) const {
  for (size_t end = chat.size(); end > 0; --end) {
    const bool whole = end == chat.size() || chat[end] == '.' || chat[end] == '[';
    if (!whole) continue;
    const auto found = names_.find(chat.substr(0, end));
    if (found != names_.end()) return found->second + std::string(chat.substr(end));
  }
  return std::string(chat);
}

std::string FieldNames::InMessage(std::string_view message) const {
  std::string out;
  for (size_t at = 0; at < message.size();) {
    const std::string_view rest = message.substr(at);
    size_t length = 1;
    if (rest.front() == '"') {
      length = QuotedLength(rest);
      out += rest.substr(0, length);
    } else if (std::isalpha(static_cast<unsigned char>(rest.front())) == 0) {
      out += rest.front();
    } else {
      length = PathLength(rest);
      const std::string_view path = rest.substr(0, length);
      const bool is_path = at == 0 || path.find_first_of(kPathMarks) != std::string_view::npos;
      out += is_path ? Of(path) : std::string(path);
    }
    at += length;
  }
  return out;
}

ApiError FieldNames::Of(ApiError error) const {
  error.message = InMessage(error.message);
  error.param = Of(std::string_view(error.param));
  return error;
}

void FieldNames::Rename(Json& error) const {
  if (!error.is_object()) return;
  if (const auto message = error.find("message"); message != error.end() && message->is_string()) {
    *message = InMessage(message->get_ref<const std::string&>());
  }
  if (const auto param = error.find("param"); param != error.end() && param->is_string()) {
    *param = Of(std::string_view(param->get_ref<const std::string&>()));
  }
}

FieldNames FieldNames::FromJson(const Json& json) {
  FieldNames names;
  if (!json.is_object()) return names;
  for (const auto& [chat, client] : json.items()) {
    if (client.is_string()) names.Add(chat, client.get<std::string>());
  }
  return names;
}

}  // namespace millrace::serve
