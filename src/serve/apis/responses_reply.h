// ResponsesReply: answers of the chat route in the form of OpenAI's Responses API.
// Threads as HttpReply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/apis/translated_reply.h"

namespace millrace::serve {

// The member "error" of a response that failed, from an error of the chat route.
Json ResponseError(const Json& error);

// What a response has before its answer begins.
struct ResponseOrigin {
  std::string id;
  int64_t created_s = 0;  // Unix time
  Json echoed;            // EchoedInResponses
  // Called once with the ended response, before its last bytes are sent. It may change it.
  std::function<void(Json& response)> ended;
};

class ResponsesReply : public TranslatedReply {
 public:
  ResponsesReply(std::shared_ptr<net::HttpReply> inner, ResponseOrigin origin, std::string ignored,
                 FieldNames names)
      : TranslatedReply(std::move(inner), std::move(ignored), std::move(names)),
        origin_(std::move(origin)) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json& chunk) override;
  std::string Done() override;
  std::string StreamError(const Json& error) override;

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  Json Object(const char* status) const;
  Json Ended(const char* status, const Json& error);
  std::string Event(const std::string& type, Json data);
  std::string Begin(const Json& chunk);
  std::string Open(Kind kind, const Json& call);
  std::string Close();
  std::string AddText(Kind kind, const std::string& text, const Json& logprobs);
  std::string AddCall(const Json& call);
  Json Item(const char* status) const;
  std::string ItemId() const;

  const ResponseOrigin origin_;
  Json model_;
  std::vector<Json> output_;       // finished items
  Kind kind_ = Kind::kNone;        // of the item that is open
  std::string text_;               // of it: text, reasoning or arguments
  Json call_;                      // kCall: the first delta
  Json logprobs_ = Json::array();  // kMessage: of its tokens
  int sequence_ = 0;               // of events
  Json finish_reason_, usage_;
};

}  // namespace millrace::serve
