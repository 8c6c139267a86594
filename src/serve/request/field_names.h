// FieldNames: what the client calls the fields of a chat request that was made of a request of
// another API. A translation fills it in; errors, and the names of ignored fields, are renamed
// where they leave. A value: one thread while it is filled in, then any.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

class FieldNames {
 public:
  // `chat` and `client` are paths: "max_tokens", "options.num_predict", "messages[3].content".
  void Add(std::string chat, std::string client);

  // The client's path, by the longest beginning of `chat` that is known; else `chat` itself.
  std::string Of(std::string_view chat) const;
  // In a message, a path outside quotation marks is renamed. Names that are also words ("stop",
  // "seed") are paths only where the message begins with them, as errors of one field do.
  std::string InMessage(std::string_view message) const;
  ApiError Of(ApiError error) const;
  // The same in the member "error" of an answer: its "message" and "param".
  void Rename(Json& error) const;

  // As an object, for what is stored, and back; anything else is taken as no names.
  Json ToJson() const { return names_; }
  static FieldNames FromJson(const Json& json);

 private:
  std::map<std::string, std::string, std::less<>> names_;
};

}  // namespace millrace::serve
