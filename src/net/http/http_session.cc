#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include "base/log.h"
#include "base/task_barrier.h"
#include "net/http/session_asio.h"

namespace millrace::net {

awaitable<size_t> Session::ReadSome() {
  if (tls_) {
    if (!tls_buffer_) tls_buffer_ = std::make_unique<char[]>(kTlsReadBytes);
    auto [ec, n] =
        co_await tls_->async_read_some(asio::buffer(tls_buffer_.get(), kTlsReadBytes), kAwait);
    if (!ec) in_.append(tls_buffer_.get(), n);
    co_return ec ? 0 : n;
  }
  while (true) {
    // A connection without TLS has no read buffer: it reads into the one that the thread shares.
    auto [ec] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
    if (ec) co_return 0;
    error_code read_error;
    const size_t n = socket_.read_some(asio::buffer(hub_.read_buffer), read_error);
    if (read_error == asio::error::would_block) continue;
    if (!read_error) in_.append(hub_.read_buffer.data(), n);
    half_closed_ = read_error == asio::error::eof;
    co_return read_error ? 0 : n;
  }
}

awaitable<void> Session::ReadLoop(std::shared_ptr<Session> self) {
  Session& s = *self;
  while (!s.input_over()) {
    while (s.in_.size() >= s.read_ahead_bytes_ && !s.ended_) co_await s.room_.Wait();
    if (s.ended_) break;
    const size_t n = co_await s.ReadSome();
    if (n == 0 && !s.half_closed_) s.ended_ = true;
    s.input_.Notify();
  }
  if (s.half_closed_) co_await s.WatchHalfClosed();
  // The client disconnected before its reply was complete: report it at once, even if a write is
  // stuck.
  if (s.reply_) s.reply_->ClientGone();
  if (s.reply_ && s.reply_->disconnected()) s.Abort();
}

// Returns when the client has disconnected.
awaitable<void> Session::WatchHalfClosed() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.native_handle(), SOL_SOCKET, SO_ERROR, &error,
             &size);  // set with the end of the input
  const bool listens = error == 0 && !(reply_ && http_1_0_);
  if (listens) {
    if (reply_) ProbeListener(std::chrono::steady_clock::now());
    co_await socket_.async_wait(tcp::socket::wait_error, kAwait);
  }
  ended_ = true;
  input_.Notify();
}

void Session::ProbeListener(SteadyTime now) {
  next_probe_ = now + Chrono(kProbePeriod);
  reply_->Probe();
}

awaitable<bool> Session::Handshake() {
  SetDeadline(options_.head_timeout);
  in_transport_ = true;
  auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAwait);
  in_transport_ = false;
  co_return !ec;
}

awaitable<void> Session::Serve(std::shared_ptr<Session> self) {
  Session& s = *self;
  if (s.tls_) {
    const bool secured = co_await s.Handshake();
    if (!secured) co_return;
  }
  asio::co_spawn(s.hub_.io, ReadLoop(self), asio::detached);
  if (s.refused_) {
    co_await s.RefuseWith(503, "the server has too many connections; try again later");
    co_return;
  }
  bool first = true;
  while (true) {
    auto parser = co_await s.ReadRequest(first);
    if (!parser) co_return;
    first = false;
    const bool keep_alive = co_await s.Answer(std::move(parser));
    if (!keep_alive) break;
    s.room_.Notify();
  }
  co_await s.Linger();
}

// Returns the next request, or null when there will be none.
awaitable<std::unique_ptr<RequestParser>> Session::ReadRequest(bool first) {
  SetDeadline(first ? options_.head_timeout : options_.idle_timeout);
  if (in_.empty()) in_ = std::string();  // frees the memory while idle
  while (in_.empty()) {
    if (input_over() || expired_ || hub_.draining) co_return nullptr;
    co_await input_.Wait();
  }
  SetDeadline(options_.head_timeout);
  auto parser = std::make_unique<RequestParser>(options_.limits);
  BodyLease lease(hub_.bodies, peer_);
  while (true) {
    auto room = BodyMemory::Room::kYes;
    const bool more = co_await Advance(*parser, lease, room);
    if (parser->stage() == HttpStage::kFailed) {
      const HttpFailure failure = parser->failure();
      parser.reset();  // frees the memory before the refusal, which may take long
      lease.Resize(0);
      co_await RefuseWith(failure.status, failure.message);
      co_return nullptr;
    }
    if (parser->stage() == HttpStage::kDone) break;
    if (more) continue;
    if (input_over()) co_return nullptr;
    if (room != BodyMemory::Room::kYes) {
      parser.reset();
      lease.Resize(0);
      co_await RefuseWith(503, room == BodyMemory::Room::kNone
                                   ? "too many large requests are being received; try again later"
                                   : "too many large requests from this address are being "
                                     "received; finish them, or try again later");
      co_return nullptr;
    }
    if (expired_) {
      co_await RefuseWith(408, "the request did not arrive in time");
      co_return nullptr;
    }
    room_.Notify();
    co_await input_.Wait();
  }
  ClearDeadline();
  co_return parser;
}

// Parses what has arrived. Returns true when more can be parsed at once.
awaitable<bool> Session::Advance(RequestParser& parser, BodyLease& lease, BodyMemory::Room& room) {
  const bool in_head = parser.stage() == HttpStage::kHead;
  const size_t used = parser.Feed(in_);
  in_.erase(0, used);
  if (parser.stage() != HttpStage::kBody) co_return used > 0 && !in_.empty();
  room = lease.Resize(parser.body_bytes());
  if (in_head) {
    window_start_ = std::chrono::steady_clock::now();
    window_bytes_ = 0;
    if (parser.expects_continue() && in_.empty() && parser.body_bytes() == 0) {
      co_await WriteAll(kContinue);
    }
  }
  ExtendBodyDeadline(parser.body_bytes());
  co_return false;
}

// Each byte extends the deadline, so a trickle of bytes times out and a steady upload does not.
// What arrived at once counts for one `body_grace` at most.
void Session::ExtendBodyDeadline(size_t bytes) {
  const auto rate = static_cast<double>(options_.body_bytes_per_second_min);
  const double grace_s = options_.body_grace.seconds();
  if (static_cast<double>(bytes - window_bytes_) >= rate * grace_s) {
    window_start_ = std::chrono::steady_clock::now();
    window_bytes_ = bytes;
  }
  const double allowed_s = static_cast<double>(bytes - window_bytes_) / rate;
  deadline_ = window_start_ + Chrono(Duration::Seconds(grace_s + allowed_s));
}

void Session::CallHandler(HttpRequest request) {
  RunTask("an HTTP handler", [&] { hub_.handler(std::move(request), MakeReply(reply_)); });
}

void Session::OnReplyChange() {
  if (reply_ && reply_->cut()) Abort();
  input_.Notify();
}

// Returns true when the connection can carry another request.
awaitable<bool> Session::Answer(std::unique_ptr<RequestParser> parser) {
  ReplyQueue::Options reply_options;
  reply_options.http_1_0 = parser->http_1_0();
  reply_options.keep_alive = parser->keep_alive();
  reply_options.unread_bytes_max = options_.unread_bytes_max;
  reply_options.draining = &hub_.draining;
  HttpRequest request = parser->TakeRequest();
  parser.reset();
  if (in_.empty()) in_ = std::string();
  reply_options.head_request = request.method == "HEAD";
  request.peer = peer_;
  reply_ = std::make_shared<ReplyQueue>(reply_options, [this] {
    asio::post(hub_.io, [self = shared_from_this()] { self->OnReplyChange(); });
  });
  http_1_0_ = reply_options.http_1_0;
  CallHandler(std::move(request));
  if (half_closed_) ProbeListener(std::chrono::steady_clock::now());
  bool keep_alive = false;
  while (true) {
    const ReplyQueue::Output output = reply_->Take();
    if (!output.bytes.empty()) {
      const bool written = co_await WriteAll(output.bytes);
      if (!written) break;
    }
    if (output.finished) {
      keep_alive = output.keep_alive;
      if (output.broken) Abort();
      break;
    }
    if (ended_ || (half_closed_ && http_1_0_)) break;
    if (output.bytes.empty()) co_await input_.Wait();
  }
  reply_->Detach();
  reply_.reset();
  co_return keep_alive;
}

awaitable<bool> Session::WriteAll(std::string_view data) {
  in_transport_ = true;
  while (!data.empty()) {
    SetDeadline(options_.write_timeout);
    const auto buffer = asio::buffer(data.data(), data.size());
    auto [ec, n] = tls_ ? co_await tls_->async_write_some(buffer, kAwait)
                        : co_await socket_.async_write_some(buffer, kAwait);
    if (ec) break;
    data.remove_prefix(n);
  }
  in_transport_ = false;
  ClearDeadline();
  co_return data.empty();
}

// Answers a request that cannot be served and ends the connection.
awaitable<void> Session::RefuseWith(int status, std::string_view message) {
  const HttpResponse response = ErrorResponse(status, message);
  const std::string text = FormatResponseHead(response.status, response.headers,
                                              BodyFraming::kContentLength, response.body.size(),
                                              /*keep_alive=*/false) +
                           response.body;
  const bool written = co_await WriteAll(text);
  if (written) co_await Linger();
}

// Closes the sending half and discards input that still arrives. Closing a socket with unread input
// would make the kernel send a reset, and the client might lose the reply.
awaitable<void> Session::Linger() {
  if (input_over()) co_return;
  SetDeadline(options_.linger_timeout);
  if (tls_) {
    in_transport_ = true;
    co_await tls_->async_shutdown(kAwait);
    in_transport_ = false;
  }
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  size_t discarded_bytes = 0;
  while (!input_over() && !expired_ && discarded_bytes < kLingerBytesMax) {
    discarded_bytes += in_.size();
    in_.clear();
    room_.Notify();
    co_await input_.Wait();
  }
}

void Session::Finish(const std::exception_ptr& error) {
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {  // std::bad_alloc, unless there is a bug
      MR_LOG(error, "closed the connection to {}: {}", peer_, e.what());
    }
  }
  Abort();
  if (reply_) reply_->Detach();
  reply_.reset();
  hub_.Ended(this);
}

}  // namespace millrace::net
