// StreamKeeper: the event streams whose clients may come back, by API key and response id. A thread
// of its own lets go of those whose time is up. Any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "net/http.h"
#include "serve/api_error.h"
#include "serve/retained_stream.h"

namespace millrace::serve {

// What a Last-Event-ID says: "RESPONSE:N".
struct StreamPosition {
  std::string response_id;
  uint64_t after = 0;
};
std::optional<StreamPosition> ParseStreamPosition(std::string_view last_event_id);

class StreamKeeper {
 public:
  StreamKeeper(const ResumableStreams& limits, const Clock& clock);
  ~StreamKeeper();

  // The reply to write a new stream to, so that it is kept for `owner`; null as `client`: nobody
  // reads yet. A stream of the same name is forgotten. When there are too many: `client` itself.
  std::shared_ptr<net::HttpReply> Keep(const std::string& owner, const std::string& response_id,
                                       std::shared_ptr<net::HttpReply> client);

  // Gives `client` the stream behind `position`, or says why not.
  std::optional<ApiError> Resume(const std::string& owner, const StreamPosition& position,
                                 std::shared_ptr<net::HttpReply> client);
  // Gives `client` the head of that stream and leaves the stream alone, or says why not.
  std::optional<ApiError> SendHead(const std::string& owner, const StreamPosition& position,
                                   net::HttpReply& client);

 private:
  using Name = std::pair<std::string, std::string>;  // owner, response id
  using Streams = std::map<Name, std::shared_ptr<RetainedStream>>;

  std::shared_ptr<RetainedStream> Find(const std::string& owner, const StreamPosition& position);
  void Run();
  // Lets go of what is over; when to look again.
  std::optional<Time> Sweep();
  bool ForgetOldestEnded() MR_REQUIRES(mutex_);  // false: none has ended

  const ResumableStreams limits_;
  const Clock& clock_;
  const std::shared_ptr<StreamsShared> shared_;
  Mutex mutex_;
  Streams streams_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::serve
