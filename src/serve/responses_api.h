// OpenAI's Responses API over the chat route: requests to chat requests, answers back. Nothing is
// stored: a conversation is sent whole. Pure, apart from ResponsesReply (translated_reply.h); any
// thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/chat_translation.h"
#include "serve/translated_reply.h"

namespace millrace::serve {

Parsed<TranslatedRequest> ChatOfResponses(std::string_view body);
// The fields of a request that every response object repeats. REQUIRES: ChatOfResponses took the
// body.
Json EchoedInResponses(std::string_view body);

class ResponsesReply : public TranslatedReply {
 public:
  ResponsesReply(std::shared_ptr<net::HttpReply> inner, Json echoed, std::string ignored)
      : TranslatedReply(std::move(inner), std::move(ignored)), echoed_(std::move(echoed)) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json& chunk) override;
  std::string Done() override;
  std::string StreamError(const Json& error) override;

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  Json Object(const char* status) const;
  std::string Event(const std::string& type, Json data);
  std::string Begin(const Json& chunk);
  std::string Open(Kind kind, const Json& call);
  std::string Close();
  std::string AddText(Kind kind, const std::string& text);
  std::string AddCall(const Json& call);
  Json Item(const char* status) const;
  std::string ItemId() const;

  const Json echoed_;
  Json head_;                 // id, created_at, model
  std::vector<Json> output_;  // finished items
  Kind kind_ = Kind::kNone;   // of the item that is open
  std::string text_;          // of it: text, reasoning or arguments
  Json call_;                 // kCall: the first delta
  int sequence_ = 0;          // of events
  Json finish_reason_, usage_;
};

}  // namespace millrace::serve
