// ReplyQueue: the bytes that wait to be written for one request. The handler's side fills it from
// any thread; the connection empties it on its I/O thread. Both sides share the ownership.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "net/http/http.h"
#include "net/http/http1.h"

namespace millrace::net {

class ReplyQueue {
 public:
  struct Options {
    bool head_request = false;    // send heads only
    bool http_1_0 = false;        // no chunks: a stream ends with the connection
    bool keep_alive = true;       // what the client allows
    size_t unread_bytes_max = 0;  // a Write with more than this queued cuts the connection
    const std::atomic<bool>* draining = nullptr;  // the server accepts no further requests
  };

  // `wake` notifies the connection of a change in Take or cut(). It is called with the lock held,
  // so that it never runs after Detach; it must do no more than post.
  ReplyQueue(const Options& options, std::function<void()> wake);

  // The handler's side; see HttpReply. Any thread.
  void Send(HttpResponse response);
  void Start(const HttpResponse& head);
  bool Write(std::string_view part);
  void End();
  void OnDisconnect(std::function<void()> callback);
  bool disconnected() const { return gone_.load(std::memory_order_acquire); }
  void Abandon();  // the last reference to the HttpReply was dropped

  // The connection's side. Its I/O thread.
  struct Output {
    std::string bytes;
    bool finished = false;    // nothing will follow `bytes`
    bool keep_alive = false;  // with finished: the connection may carry another request
    bool broken = false;      // with finished: the stream was abandoned half-way
  };
  Output Take();
  bool cut() const;  // by Write, because the client does not read
  // Writes bytes that a waiting client ignores, and that make the machine of a disconnected client
  // answer with a reset. Before the head of the response this is an interim response (RFC 9110
  // section 15.2); within a stream it is a zero in front of the next chunk's size. Does nothing for
  // HTTP/1.0.
  void Probe();
  void ClientGone();  // runs the callback; no effect once the response is complete
  void Detach();      // no more wakes; for an unfinished response, the same as ClientGone

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
  size_t in_flight_bytes_ MR_GUARDED_BY(mutex_) = 0;  // taken, but perhaps not written yet
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
