// RetainedStream: one event stream that outlives its client's connection. It sits between the
// answer that writes the events and the client that reads them. It numbers and stores each event; a
// client that reconnects gets the events that it has not seen, byte for byte.
//
// The answer writes through a net::HttpReply, the Producer. The StreamKeeper, the Producer and
// calls in progress own the stream together. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "net/http/http.h"

namespace millrace::serve {

struct ResumableStreams {
  bool enabled = false;
  Duration grace = Duration::Seconds(30);   // how long a stream runs on without a client
  Duration retain = Duration::Seconds(60);  // how long it can be fetched after its end
  size_t streams_max = 1024;                // beyond it, new streams are not resumable
  size_t stream_bytes_max = 8u << 20;       // a longer stream continues but is no longer resumable
  size_t bytes_max = 256u << 20;            // of all streams together
};

// The state that the streams share with their keeper: the number of bytes that they hold, and a
// condition variable that wakes the keeper's thread.
struct StreamsShared {
  std::atomic<size_t> bytes = 0;
  Mutex mutex;
  CondVar wakeup;
  bool woken MR_GUARDED_BY(mutex) = false;
  bool stopping MR_GUARDED_BY(mutex) = false;
  void Wake();
};

class RetainedStream : public std::enable_shared_from_this<RetainedStream> {
 public:
  RetainedStream(std::string response_id, const ResumableStreams& limits, const Clock& clock,
                 std::shared_ptr<StreamsShared> shared);
  ~RetainedStream();

  // Returns the reply that the answer writes to. Called once, with the first client, or with null
  // if a client has to connect within the grace period. Destroying the reply before End disconnects
  // the client and ends the stream.
  std::shared_ptr<net::HttpReply> Produce(std::shared_ptr<net::HttpReply> client);

  enum class Attached { kYes, kNotKept, kNoSuchEvent };
  // Makes `client` the reader, starting after event number `after` (0: from the beginning), and
  // disconnects the previous client. Does not touch `client` if the result is not kYes. A client
  // may have more of an unfinished stream than this server: from an earlier one that it follows, or
  // from one that has taken its place while it was stopped.
  Attached Attach(std::shared_ptr<net::HttpReply> client, uint64_t after);

  // Returns what Attach would return, and the head that it would send.
  Attached Head(uint64_t after, net::HttpResponse& head) const;

  struct Inspection {
    bool forget = false;           // the keeper must drop the stream
    std::optional<Time> again;     // when to inspect it again
    std::function<void()> cancel;  // set if no client came in time; call it without locks
  };
  Inspection Inspect(Time now);
  // When the stream became complete; nullopt if it is not.
  std::optional<Time> ended() const;

 private:
  class Producer;

  void Send(net::HttpResponse response);
  void Start(net::HttpResponse head);
  bool Write(const std::string& events);
  void End();
  void Abandon();  // the answer will not be finished
  bool disconnected() const;

  Attached CanAttach(uint64_t after) const MR_REQUIRES(mutex_);
  std::string Number(const std::string& events) MR_REQUIRES(mutex_);
  // What of the log's last events, after number `before`, the client has not seen.
  std::string Unseen(std::string numbered, uint64_t before) const MR_REQUIRES(mutex_);
  void Keep(const std::string& numbered) MR_REQUIRES(mutex_);
  void StopKeeping() MR_REQUIRES(mutex_);
  void WatchClient() MR_REQUIRES(mutex_);
  void Detach() MR_REQUIRES(mutex_);
  void DetachIfGone() MR_REQUIRES(mutex_);

  const std::string response_id_;
  const ResumableStreams limits_;
  const Clock& clock_;
  const std::shared_ptr<StreamsShared> shared_;
  std::atomic<uint64_t> gone_ = 0;  // the value of reading_ whose client disconnected last

  mutable Mutex mutex_;
  std::shared_ptr<net::HttpReply> client_ MR_GUARDED_BY(mutex_);
  uint64_t reading_ MR_GUARDED_BY(mutex_) = 0;                   // number of the current client
  uint64_t seen_ MR_GUARDED_BY(mutex_) = 0;                      // events that it had at first
  bool failed_ MR_GUARDED_BY(mutex_) = false;                    // has an error event
  std::optional<Time> without_client_ MR_GUARDED_BY(mutex_);     // since when there is none
  std::optional<net::HttpResponse> head_ MR_GUARDED_BY(mutex_);  // once started
  std::string log_ MR_GUARDED_BY(mutex_);                        // all events, numbered
  std::vector<size_t> ends_ MR_GUARDED_BY(mutex_);               // the end of each event in log_
  uint64_t numbered_ MR_GUARDED_BY(mutex_) = 0;
  bool kept_ MR_GUARDED_BY(mutex_) = true;
  bool answered_ MR_GUARDED_BY(mutex_) = false;                // nothing more will come
  std::optional<Time> ended_ MR_GUARDED_BY(mutex_);            // when it was complete
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);  // the answer's
};

}  // namespace millrace::serve
