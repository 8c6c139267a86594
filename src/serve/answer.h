// Answer: writes what the choices of one HTTP request have to say to its reply, either as events
// while they come or as one body at the end. Driven by one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/http.h"
#include "serve/api_error.h"
#include "serve/choice.h"
#include "serve/response.h"

namespace millrace::serve {

struct AnswerFormat {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool prompt_logprobs = false;  // shown as vLLM's field of that name
  std::string ignored;           // IgnoredHeaderValue
};

class Answer {
 public:
  Answer(AnswerFormat format, ResponseHead head, std::shared_ptr<net::HttpReply> reply);

  // Sends a stream's head, unless it was sent: what fails from then on is an event.
  void Start();
  // A stream makes an event for each choice that has output, to be written with the next Flush or
  // Finish: called after every token, which tokens share an event does not depend on when they
  // came.
  void Collect(std::vector<Choice>& choices, const UsageCounts& usage);
  // A stream writes all the output there is in one part; a whole answer waits for Finish. False:
  // the client has gone.
  bool Flush(std::vector<Choice>& choices, const UsageCounts& usage);
  // Every choice has finished. `prompt_reports`: one per choice, or empty.
  void Finish(std::vector<Choice>& choices, const UsageCounts& usage,
              const std::vector<TokenReports>& prompt_reports);
  // The error as status and body, or as an event when the stream has begun. Once, instead of
  // Finish.
  void Fail(const ApiError& error);

  bool started() const { return started_; }

 private:
  void AppendChunk(Json choice, const UsageCounts& usage);
  void AddIgnoredHeader(net::HttpResponse& response) const;
  const AnswerFormat format_;
  const ResponseHead head_;
  const std::shared_ptr<net::HttpReply> reply_;
  bool started_ = false;
  std::string events_;           // not yet written
  std::vector<bool> role_sent_;  // chat streams: by choice
};

}  // namespace millrace::serve
