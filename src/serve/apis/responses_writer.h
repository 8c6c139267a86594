// ResponsesWriter: answers in the form of OpenAI's Responses API. Threads as AnswerWriter.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/answer/answer_writer.h"

namespace millrace::serve {

// The member "error" of a response that failed.
Json ResponseError(const std::string& message);

// What a response has before its answer begins.
struct ResponseOrigin {
  std::string id;
  int64_t created_s = 0;  // Unix time
  Json echoed;            // ResponsesRequest::echoed
  // Called once with the ended response, before its last bytes are sent. It may change it.
  std::function<void(Json& response)> ended;
};

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(ResponseOrigin origin, FieldNames names, std::string ignored)
      : AnswerWriter(std::move(names), std::move(ignored)), origin_(std::move(origin)) {}

  Json Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) override;
  std::string Part(const ChoicePart& part, const UsageCounts& usage) override;
  std::string Done(const AnswerEnd& end) override;

 protected:
  std::string StreamError(const ApiError& error) override;

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  Json Object(const char* status) const;
  Json Ended(const char* status, const Json& error);
  std::string Event(const std::string& type, Json data);
  std::string Begin();
  std::string Open(Kind kind, const CallPart& call);
  std::string Close();
  std::string AddText(Kind kind, const std::string& text, const Json& logprobs);
  std::string AddCall(const CallPart& call);
  Json Item(const char* status) const;
  std::string ItemId() const;

  const ResponseOrigin origin_;
  Json model_;                     // null before the answer begins
  std::vector<Json> output_;       // finished items
  Kind kind_ = Kind::kNone;        // of the item that is open
  std::string text_;               // of it: text, reasoning or arguments
  CallPart call_;                  // kCall: the first delta
  Json logprobs_ = Json::array();  // kMessage: of its tokens
  int sequence_ = 0;               // of events
  std::string finish_reason_;
  std::optional<UsageCounts> usage_;  // once it has ended
};

}  // namespace millrace::serve
