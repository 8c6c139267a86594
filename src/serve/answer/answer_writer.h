// AnswerWriter: an answer in the form of one API. Answer feeds it with values and sends what it
// makes of them. Owned by the call and its answer; used by one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/http/http.h"
#include "serve/answer/response.h"
#include "serve/http/api_error.h"
#include "serve/request/field_names.h"

namespace millrace::serve {

// What is known when an answer has ended.
struct AnswerEnd {
  UsageCounts usage;
  std::optional<AnswerTimes> times;  // if they were asked for and are known
  std::string fingerprints;          // of all its tokens
};

class AnswerWriter {
 public:
  // `names`: what the client calls the fields of the chat request. `ignored`: fields of its own
  // request that have no effect and that the chat request lacks.
  explicit AnswerWriter(FieldNames names = {}, std::string ignored = {})
      : names_(std::move(names)), ignored_(std::move(ignored)) {}
  virtual ~AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;

  // Before the first choice.
  void SetHead(ResponseHead head) { head_ = std::move(head); }

  // The body of a whole answer.
  virtual Json Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) = 0;
  // The bytes of a stream: for what is new of one choice, and after the last of all choices.
  virtual std::string Part(const ChoicePart& part, const UsageCounts& usage) = 0;
  virtual std::string Done(const AnswerEnd& end) = 0;
  // The end of a stream that fails.
  std::string Failure(const ApiError& error) { return StreamError(names_.Of(error)); }
  // What a silent stream sends. Empty: nothing.
  virtual std::string Ping() const { return std::string(kPing); }
  virtual const char* StreamType() const { return kEventStreamType; }

  // The answer to a request that is refused.
  net::HttpResponse Refusal(const ApiError& error) const;
  // Gives the response to that error its body.
  void Refuse(const ApiError& error, net::HttpResponse& response) const;
  // Names the fields without effect, `of_chat` and those of the client's own request.
  void AddIgnored(net::HttpResponse& response, const std::string& of_chat) const;

 protected:
  virtual Json Error(const ApiError& error) const { return ErrorBody(error); }
  virtual std::string StreamError(const ApiError& error) = 0;
  const ResponseHead& head() const { return head_; }

 private:
  const FieldNames names_;
  const std::string ignored_;
  ResponseHead head_;
};

}  // namespace millrace::serve
