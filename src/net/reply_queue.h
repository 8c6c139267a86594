// What waits to be written for one request: the meeting point of whoever answers (any thread) and
// the connection (its I/O thread). Owned by both sides; the last one to leave frees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "net/http.h"
#include "net/http1.h"

namespace millrace::net {

class ReplyQueue {
 public:
  struct Options {
    bool head_request = false;    // send heads only
    bool http_1_0 = false;        // no chunks: a stream ends with the connection
    bool keep_alive = true;       // what the client allows
    size_t unread_bytes_max = 0;  // a Write behind more than this cuts the connection
    const std::atomic<bool>* draining = nullptr;  // the server wants no further requests
  };

  // `wake` tells the connection that Take or cut() have output. It is called with the lock held, so
  // that it never runs after Detach; it must only post.
  ReplyQueue(const Options& options, std::function<void()> wake);

  // Whoever answers; see HttpReply.
  void Send(HttpResponse response);
  void Start(const HttpResponse& head);
  bool Write(std::string_view part);
  void End();
  void OnDisconnect(std::function<void()> callback);
  bool disconnected() const { return gone_.load(std::memory_order_acquire); }
  void Abandon();  // nobody is left who could answer

  // The connection.
  struct Output {
    std::string bytes;
    bool finished = false;    // nothing will follow `bytes`
    bool keep_alive = false;  // with finished: the connection may carry another request
    bool broken = false;      // with finished: the stream was abandoned half-way
  };
  Output Take();
  bool cut() const;  // by Write, because the client does not read
  // Writes what a client that waits for the answer ignores, and what makes the machine of one that
  // has gone answer with a reset: an interim response before the answer's head (RFC 9110 section
  // 15.2), a zero in front of the next chunk's size in the middle of a stream. Not for HTTP/1.0.
  void Probe();
  void ClientGone();  // runs the callback; no effect once the answer is complete
  void Detach();      // no wake from now on; an unfinished answer counts as gone

 private:
  enum class State { kWaiting, kStreaming, kFinished };

  bool Accepts(State wanted) const MR_REQUIRES(mutex_);
  void Finish() MR_REQUIRES(mutex_);
  void Wake() MR_REQUIRES(mutex_);
  std::string Head(const HttpResponse& response, BodyFraming framing) MR_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::function<void()> wake_ MR_GUARDED_BY(mutex_);
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);
  std::string queued_ MR_GUARDED_BY(mutex_);
  size_t in_flight_bytes_ MR_GUARDED_BY(mutex_) = 0;  // taken and perhaps not written yet
  int chunk_zeros_ MR_GUARDED_BY(mutex_) = 0;         // in front of the next chunk's size
  State state_ MR_GUARDED_BY(mutex_) = State::kWaiting;
  bool wake_pending_ MR_GUARDED_BY(mutex_) = false;
  bool keep_alive_ MR_GUARDED_BY(mutex_);
  bool broken_ MR_GUARDED_BY(mutex_) = false;
  bool cut_ MR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> gone_{false};
};

// The handle given to the handler.
std::shared_ptr<HttpReply> MakeReply(std::shared_ptr<ReplyQueue> queue);

}  // namespace millrace::net
