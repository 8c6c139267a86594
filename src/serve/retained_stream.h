// RetainedStream: one event stream that outlives its client's connection. It stands between the
// answer that writes events and whichever client reads them: each event gets a number, all are
// kept, and a client that comes back is given what it has not seen, the very same bytes.
//
// The answer's side is net::HttpReply, through the Producer. Any thread.
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
#include "net/http.h"

namespace millrace::serve {

struct ResumableStreams {
  bool enabled = false;
  Duration grace = Duration::Seconds(30);   // a stream without a client runs on for so long
  Duration retain = Duration::Seconds(60);  // and may be fetched for so long after its end
  size_t streams_max = 1024;                // beyond it new streams are plain ones
  size_t stream_bytes_max = 8u << 20;       // a longer stream goes on, but can no longer be resumed
  size_t bytes_max = 256u << 20;            // of all streams
};

// What the streams share with their keeper: how many bytes they hold, and a bell that wakes it.
struct StreamsShared {
  std::atomic<size_t> bytes = 0;
  Mutex mutex;
  CondVar bell;
  bool rung MR_GUARDED_BY(mutex) = false;
  bool stopping MR_GUARDED_BY(mutex) = false;
  void Ring();
};

class RetainedStream : public std::enable_shared_from_this<RetainedStream> {
 public:
  RetainedStream(std::string response_id, const ResumableStreams& limits, const Clock& clock,
                 std::shared_ptr<StreamsShared> shared);
  ~RetainedStream();

  // The answer's side: once, with the first client, or null: one has to come back within the grace.
  // Dropping it before End cuts the client off and ends the stream.
  std::shared_ptr<net::HttpReply> Produce(std::shared_ptr<net::HttpReply> client);

  enum class Attached { kYes, kNotKept, kNoSuchEvent };
  // From now on `client` reads, beginning behind event `after` (0: all); whoever read before is cut
  // off. Otherwise `client` is left alone.
  Attached Attach(std::shared_ptr<net::HttpReply> client, uint64_t after);

  // What Attach would do, and the head that it would send.
  Attached Head(uint64_t after, net::HttpResponse& head) const;

  struct Inspection {
    bool forget = false;           // of no more use
    std::optional<Time> again;     // worth another look then
    std::function<void()> cancel;  // nobody came back: to be called without locks
  };
  Inspection Inspect(Time now);
  // Complete since; nullopt: not.
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
  void Keep(const std::string& numbered) MR_REQUIRES(mutex_);
  void StopKeeping() MR_REQUIRES(mutex_);
  void Listen() MR_REQUIRES(mutex_);
  void Detach() MR_REQUIRES(mutex_);
  void DetachIfGone() MR_REQUIRES(mutex_);

  const std::string response_id_;
  const ResumableStreams limits_;
  const Clock& clock_;
  const std::shared_ptr<StreamsShared> shared_;
  std::atomic<uint64_t> gone_ = 0;  // the last reading that ended by itself

  mutable Mutex mutex_;
  std::shared_ptr<net::HttpReply> client_ MR_GUARDED_BY(mutex_);
  uint64_t reading_ MR_GUARDED_BY(mutex_) = 0;                   // counts the clients
  std::optional<Time> without_client_ MR_GUARDED_BY(mutex_);     // since when
  std::optional<net::HttpResponse> head_ MR_GUARDED_BY(mutex_);  // once started
  std::string log_ MR_GUARDED_BY(mutex_);                        // the events
  std::vector<size_t> ends_ MR_GUARDED_BY(mutex_);               // of each event in log_
  uint64_t numbered_ MR_GUARDED_BY(mutex_) = 0;
  bool kept_ MR_GUARDED_BY(mutex_) = true;
  bool answered_ MR_GUARDED_BY(mutex_) = false;                // nothing more will come
  std::optional<Time> ended_ MR_GUARDED_BY(mutex_);            // complete
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);  // the answer's
};

}  // namespace millrace::serve
