// ChatTranslation: reads a request of another API and makes a chat request of it. Base of one
// reader per API; one request, one thread. A known field is read, refused or ignored; those that
// are ignored, and unknown ones, are named.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "serve/request/field_names.h"
#include "serve/request/field_reader.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace millrace::serve {

// For texts that only the body's size bounds.
inline constexpr size_t kAnyTextBytes = std::numeric_limits<size_t>::max();
inline constexpr int64_t kMaxTokensMax = std::numeric_limits<int32_t>::max();

struct TranslatedRequest {
  OrderedJson chat;     // a body of POST /v1/chat/completions, or of the route that answers
  std::string ignored;  // IgnoredHeaderValue of the other API's fields
  FieldNames names;     // of the chat's fields, for errors
};

class ChatTranslation {
 public:
  // `json` is `body`, parsed, and outlives this.
  ChatTranslation(const Json& json, std::string_view body)
      : json_(json), text_(body), reader_(json) {}
  virtual ~ChatTranslation() = default;
  ChatTranslation(const ChatTranslation&) = delete;
  ChatTranslation& operator=(const ChatTranslation&) = delete;

  Parsed<TranslatedRequest> Run();

 protected:
  // Fills in chat_. After an error of reader_ what it does has no effect.
  virtual void Read() = 0;

  // The field, with keys in the client's order; null if it is absent, and after an error.
  const OrderedJson& Take(const char* name);
  // `to` is the chat's name of the field.
  void Copy(const char* from, const char* to);
  void Copy(const char* name) { Copy(name, name); }
  // The next message of the chat; `where` is what it comes from.
  void AddMessage(const std::string& where, OrderedJson message);
  // The last chunk of a stream has the usage, as these APIs have it.
  void AskForUsage();

  const Json& json_;
  const std::string_view text_;
  FieldReader reader_;
  OrderedJson body_;  // json_, with keys in the client's order
  OrderedJson chat_ = OrderedJson::object();
  FieldNames names_;
};

// The member of an object; null if it is none or lacks it.
const OrderedJson& MemberOf(const OrderedJson& object, const char* name);

// Runs a `Translation` over a body.
template <typename Translation, typename... Arguments>
Parsed<TranslatedRequest> TranslateToChat(std::string_view body, Arguments... arguments) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return Translation(std::get<Json>(parsed), body, arguments...).Run();
}

}  // namespace millrace::serve
