// Answer: writes the choices of one HTTP request to its reply, either as events while they arrive
// or as one body at the end. Owned by a Generation; used by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/http/http.h"
#include "serve/answer/choice.h"
#include "serve/answer/response.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

struct AnswerFormat {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool metrics = false;          // adds the object `metrics`
  bool prompt_logprobs = false;  // adds vLLM's field of that name to the answer
  std::string ignored;           // IgnoredHeaderValue
};

class Answer {
 public:
  Answer(AnswerFormat format, ResponseHead head, std::shared_ptr<net::HttpReply> reply);

  // Sends a stream's head if it has not been sent. Later errors are sent as events.
  void Start();
  // Streams only: makes an event for each choice that has output; the next Flush or Finish writes
  // it. When this is called after every token, the split of tokens into events does not depend on
  // their timing.
  void Collect(std::vector<Choice>& choices, const UsageCounts& usage);
  // Tokens with this fingerprint follow. An answer has those of all its tokens.
  void AddFingerprint(const std::string& fingerprint);
  // Writes all output so far of a stream in one part; does nothing for a whole answer, which Finish
  // writes. Returns false if the client has disconnected.
  bool Flush(std::vector<Choice>& choices, const UsageCounts& usage);
  // Streams only: sends a ping, and the head if it has not been sent. Returns as Flush.
  bool Ping();
  // Ends the answer; every choice has finished. `prompt_reports`: one per choice, or empty.
  // `metrics`: what its time went into, if that was asked for and is known.
  void Finish(std::vector<Choice>& choices, const UsageCounts& usage,
              const std::vector<TokenReports>& prompt_reports,
              const std::optional<AnswerTimes>& metrics);
  // Sends the error as status and body, or as an event if the stream has begun. Called at most
  // once, instead of Finish.
  void Fail(const ApiError& error);

  bool started() const { return started_; }
  // Of all its tokens.
  std::string Fingerprints() const;

 private:
  // A chunk with `choice`, which is of `part`.
  void AppendChunk(Json choice, const ChoicePart& part, const UsageCounts& usage);
  void AddIgnoredHeader(net::HttpResponse& response) const;
  const AnswerFormat format_;
  const ResponseHead head_;
  const std::shared_ptr<net::HttpReply> reply_;
  bool started_ = false;
  bool prompt_ids_sent_ = false;           // chat streams
  std::string events_;                     // not yet written
  std::vector<bool> role_sent_;            // chat streams: by choice
  std::vector<std::string> fingerprints_;  // of its tokens so far, each once
};

}  // namespace millrace::serve
