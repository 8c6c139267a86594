// BackgroundResponse: a response that is computed without a client, from its first try to its end.
// Clients may follow its events meanwhile. It is owned by those who run it and by the routes.
//
// It is its own reply to the chat route, which ResponsesWriter answers. Threads as HttpReply;
// Cancel and Follow from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/answer/retained_stream.h"
#include "serve/stored/response_records.h"

namespace millrace::serve {

// What follows the first `after` events.
std::string_view EventsAfter(std::string_view events, uint64_t after);

class BackgroundResponse : public std::enable_shared_from_this<BackgroundResponse> {
 public:
  enum class TryEnd {
    kEnded,     // the record has the last state of the response
    kTryAgain,  // the service had no room for it
    kLeft,      // the server ends: the record stays open, for the next one
  };
  using Ended = std::function<void(TryEnd)>;

  // `client` follows the events from the first one, if the response streams; null: nobody does.
  BackgroundResponse(ResponseRecord record, const Clock& clock,
                     std::shared_ptr<net::HttpReply> client);
  ~BackgroundResponse();

  // The reply for one try; calls `ended` once. `leaving`: whether the server is about to end.
  std::shared_ptr<net::HttpReply> Try(Ended ended, std::function<bool()> leaving);
  // For ResponseOrigin::ended.
  void TakeEnded(const Json& response, bool leaving);
  // Ends it, if it has not ended: its request is aborted if it runs.
  void Cancel();
  // Ends it with an event of that error.
  void Fail(const std::string& message);
  // Sends the client the events after the first `after`. False if nobody can follow, or not from
  // there.
  bool Follow(std::shared_ptr<net::HttpReply> client, uint64_t after);

  // As of now. Not open: it has ended.
  ResponseRecord record() const;
  bool open() const;
  // Owner and id.
  std::pair<std::string, std::string> name() const { return name_; }

 private:
  class Reply;

  void Keep(std::string_view events) MR_REQUIRES(mutex_);

  const std::pair<std::string, std::string> name_;
  const std::shared_ptr<RetainedStream> stream_;  // null: nobody can follow it
  const std::shared_ptr<net::HttpReply> events_;  // into stream_
  mutable Mutex mutex_;
  ResponseRecord record_ MR_GUARDED_BY(mutex_);
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);  // of the try
  bool left_ MR_GUARDED_BY(mutex_) = false;                    // aborted because the server ends
};

}  // namespace millrace::serve
