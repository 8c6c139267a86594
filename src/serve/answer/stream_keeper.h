// StreamKeeper: holds the event streams that clients may resume, by API key and response id. Its
// own thread drops them when their time is up. Owned by the service; any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/answer/retained_stream.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

// A parsed Last-Event-ID: "RESPONSE:N".
struct StreamPosition {
  std::string response_id;
  uint64_t after = 0;
};
std::optional<StreamPosition> ParseStreamPosition(std::string_view last_event_id);

class StreamKeeper {
 public:
  StreamKeeper(const ResumableStreams& limits, const Clock& clock);
  ~StreamKeeper();

  // Returns the reply to write a new stream to, so that the stream is kept for `owner`. A null
  // `client` means that no client reads it yet. Drops an existing stream of the same name. Returns
  // `client` itself if too many streams are kept.
  std::shared_ptr<net::HttpReply> Keep(const std::string& owner, const std::string& response_id,
                                       std::shared_ptr<net::HttpReply> client);

  // Sends `client` the stream after `position`, or returns an error.
  std::optional<ApiError> Resume(const std::string& owner, const StreamPosition& position,
                                 std::shared_ptr<net::HttpReply> client);
  // Sends `client` the head of that stream, without changing the stream, or returns an error.
  std::optional<ApiError> SendHead(const std::string& owner, const StreamPosition& position,
                                   net::HttpReply& client);

 private:
  using Name = std::pair<std::string, std::string>;  // owner, response id
  using Streams = std::map<Name, std::shared_ptr<RetainedStream>>;

  std::shared_ptr<RetainedStream> Find(const std::string& owner, const StreamPosition& position);
  void Run();
  // Drops streams whose time is up. Returns when to sweep again.
  std::optional<Time> Sweep();
  bool ForgetOldestEnded() MR_REQUIRES(mutex_);  // false if none has ended

  const ResumableStreams limits_;
  const Clock& clock_;
  const std::shared_ptr<StreamsShared> shared_;
  Mutex mutex_;
  Streams streams_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::serve
