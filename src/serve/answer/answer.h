// Answer: sends the choices of one HTTP request to its reply, either as events while they arrive
// or as one body at the end. An AnswerWriter gives them the form of the client's API. Owned by a
// Generation; used by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/http/http.h"
#include "serve/answer/choice.h"
#include "serve/answer/chunk_writer.h"

namespace millrace::serve {

class Answer {
 public:
  // `writer`: of another API; null: OpenAI's form.
  Answer(AnswerFormat format, ResponseHead head, std::shared_ptr<net::HttpReply> reply,
         std::shared_ptr<AnswerWriter> writer);

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
  bool WriteEvents();  // returns as Flush

  const AnswerFormat format_;
  const std::shared_ptr<net::HttpReply> reply_;
  const std::shared_ptr<AnswerWriter> writer_;
  bool started_ = false;
  std::string events_;                     // not yet written
  bool collected_ = false;                 // output that is not yet written; it may have no bytes
  std::vector<std::string> fingerprints_;  // of its tokens so far, each once
};

}  // namespace millrace::serve
