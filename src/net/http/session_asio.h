// Session and SessionHub: the connections of one I/O thread, on Asio. Internal to session_group.cc
// and http_session.cc, because Asio is slow to compile. Owned by SessionGroup; used on its thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/mutex.h"
#include "net/http/body_memory.h"
#include "net/http/http1.h"
#include "net/http/http_server.h"
#include "net/http/reply_queue.h"
#include "net/tls.h"

namespace millrace::net {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;
using TlsStream = asio::ssl::stream<tcp::socket&>;

inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// Bytes per read, into a buffer that the thread's sessions share.
inline constexpr size_t kReadBytes = 64 * 1024;
// Bytes per read, into a buffer of each TLS connection.
inline constexpr size_t kTlsReadBytes = 8 * 1024;
// Limit of the input that a client may send ahead of the replies.
inline constexpr size_t kReadAheadBytes = 64 * 1024;
// Limit of the input discarded after the last reply; see Session::Linger.
inline constexpr size_t kLingerBytesMax = 32u << 20;
// Time between probes of a client that closed its sending half; see ReplyQueue::Probe.
inline constexpr Duration kProbePeriod = Duration::Seconds(5);
inline constexpr Duration kSweepMax = Duration::Millis(500);
inline constexpr Duration kSweepMin = Duration::Millis(5);

inline std::chrono::nanoseconds Chrono(Duration d) { return std::chrono::nanoseconds(d.ns); }

// A wake-up for one coroutine: Wait returns after the next Notify, or at once if there was one.
class Signal {
 public:
  explicit Signal(asio::io_context& io) : timer_(io, SteadyTime::max()) {}
  void Notify() {
    set_ = true;
    timer_.cancel();
  }
  awaitable<void> Wait() {
    while (!set_) co_await timer_.async_wait(kAwait);
    set_ = false;
  }

 private:
  asio::steady_timer timer_;
  bool set_ = false;
};

class Session;

// What the sessions of one thread share. Used on that thread only, except for the marked members.
struct SessionHub {
  SessionHub(const HttpServerOptions& o, HttpHandler h, TlsContext t, BodyMemory& b)
      : options(o), handler(std::move(h)), bodies(b), read_buffer(kReadBytes), sweep_timer(io) {
    if (t) UseTls(t);
  }

  // For sessions that begin after it; those that have begun keep their own.
  void UseTls(const TlsContext& t) {
    SSL_CTX_up_ref(t.get());
    tls.emplace(t.get());
  }

  awaitable<void> Sweep();
  void Start(UniqueFd socket, std::string peer, bool refused);
  void Ended(Session* session);

  const HttpServerOptions options;
  const HttpHandler handler;
  BodyMemory& bodies;  // of all threads
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::optional<asio::ssl::context> tls;
  std::vector<char> read_buffer;
  asio::steady_timer sweep_timer;
  std::unordered_set<Session*> sessions;
  bool cut = false;

  std::atomic<bool> draining{false};  // any thread
  Mutex mutex;                        // held when count decreases, for the wait until it is 0
  CondVar empty;
  std::atomic<size_t> count{0};  // any thread reads
  std::thread thread;
};

// One connection: a reader, which collects what arrives and notices the end, and a server, which
// parses requests and writes replies. Both are coroutines on the group's thread.
//
// The end of the input has two meanings: the client has disconnected, or it has closed only its
// sending half (RFC 9112 section 9.6) and waits for the replies. To find out, the server sends
// bytes that a waiting client ignores; the machine of a client that has disconnected answers them
// with a reset. That is not possible with TLS and HTTP/1.0, where the end of the input counts as a
// disconnect.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionHub& hub, tcp::socket socket, std::string peer, bool refused)
      : hub_(hub),
        options_(hub.options),
        socket_(std::move(socket)),
        peer_(std::move(peer)),
        refused_(refused),
        read_ahead_bytes_(std::max(kReadAheadBytes, 2 * options_.limits.head_bytes_max)),
        input_(hub.io),
        room_(hub.io) {
    if (hub.tls && !refused) tls_ = std::make_unique<TlsStream>(socket_, *hub.tls);
  }

  static void Spawn(std::shared_ptr<Session> session) {
    auto& io = session->hub_.io;
    asio::co_spawn(io, Serve(session),
                   [session](std::exception_ptr error) { session->Finish(error); });
  }

  // Called by the sweep.
  void CheckDeadline(SteadyTime now) {
    if (now < deadline_) return;
    deadline_ = SteadyTime::max();
    expired_ = true;
    if (in_transport_) Abort();
    input_.Notify();
  }
  // Called by the sweep: probes a client that closed its sending half.
  void CheckListener(SteadyTime now) {
    if (half_closed_ && reply_ && now >= next_probe_) ProbeListener(now);
  }

  // Closes at once; the coroutines end by themselves.
  void Abort() {
    error_code ignored;
    socket_.close(ignored);
    ended_ = true;
    if (reply_) reply_->ClientGone();
    input_.Notify();
    room_.Notify();
  }

  // Called when the server drains: an idle connection then closes itself.
  void Notify() { input_.Notify(); }

 private:
  // Coroutines take views and references, whose owners outlive the call: g++ 12 destroys temporary
  // aggregate arguments of an awaited call twice.
  static awaitable<void> Serve(std::shared_ptr<Session> self);
  static awaitable<void> ReadLoop(std::shared_ptr<Session> self);
  awaitable<size_t> ReadSome();
  awaitable<void> WatchHalfClosed();
  awaitable<bool> Handshake();
  awaitable<std::unique_ptr<RequestParser>> ReadRequest(bool first);
  awaitable<bool> Advance(RequestParser& parser, BodyLease& lease, BodyMemory::Room& room);
  void ExtendBodyDeadline(size_t bytes);
  awaitable<bool> Answer(std::unique_ptr<RequestParser> parser);
  awaitable<bool> WriteAll(std::string_view data);
  awaitable<void> RefuseWith(int status, std::string_view message);
  awaitable<void> Linger();

  void CallHandler(HttpRequest request);
  void OnReplyChange();
  void ProbeListener(SteadyTime now);
  // No more input will arrive: the client has closed its sending half or both.
  bool input_over() const { return half_closed_ || ended_; }
  void Finish(const std::exception_ptr& error);
  void SetDeadline(Duration d) {
    deadline_ = std::chrono::steady_clock::now() + Chrono(d);
    expired_ = false;
  }
  void ClearDeadline() { deadline_ = SteadyTime::max(); }

  SessionHub& hub_;
  const HttpServerOptions& options_;
  tcp::socket socket_;
  std::unique_ptr<TlsStream> tls_;
  std::unique_ptr<char[]> tls_buffer_;
  const std::string peer_;
  const bool refused_;
  const size_t read_ahead_bytes_;

  std::string in_;  // arrived and not parsed
  Signal input_;    // the server waits for: bytes, the end, a deadline, output of the reply
  Signal room_;     // the reader waits for: room in in_
  SteadyTime deadline_ = SteadyTime::max();
  std::shared_ptr<ReplyQueue> reply_;  // while a reply is in progress
  bool http_1_0_ = false;              // the request of reply_
  bool ended_ = false;                 // the peer has disconnected, or we have closed
  bool half_closed_ = false;           // the peer has closed its sending half, but may still read
  SteadyTime next_probe_;              // see ReplyQueue::Probe
  bool expired_ = false;               // the deadline has passed
  bool in_transport_ = false;          // waiting for a write or a handshake
  SteadyTime window_start_;            // of the body being read; see ExtendBodyDeadline
  size_t window_bytes_ = 0;            // that had arrived by then
};

}  // namespace millrace::net
