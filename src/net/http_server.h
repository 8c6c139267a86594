// An HTTP/1.1 server over TCP, TLS or a unix socket: heads and bodies within limits in, replies and
// event streams out. It owns one accepting thread and `io_threads` I/O threads; each connection
// lives on one of them. The handler runs there and answers from any thread (net/http.h).
//
// One request at a time per connection: what a client sends ahead waits until the reply is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/http.h"
#include "net/http1.h"
#include "net/unix_socket.h"

namespace millrace::net {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // empty: every interface
  uint16_t port = 0;               // 0: any free one
  std::string unix_path;           // listens here instead, without TLS (net/unix_socket.h)
  int io_threads = 1;

  std::string tls_certificate_path;  // both or neither
  std::string tls_key_path;

  HttpLimits limits;
  size_t connections_max = 20'000;          // beyond it: a 503 for a few, then just closed
  size_t body_bytes_in_all_max = 1u << 30;  // of bodies being received, per I/O thread: 503
  size_t unread_bytes_max = 256 * 1024;     // waiting for one slow reader before it is cut
  size_t send_buffer_bytes = 256 * 1024;    // asked of the kernel per connection

  Duration head_timeout = Duration::Seconds(15);   // from the first byte of a request; TLS too
  Duration idle_timeout = Duration::Seconds(75);   // between requests
  Duration body_grace = Duration::Seconds(15);     // then the body must have come at this rate:
  size_t body_bytes_per_second_min = 1024;         // 408
  Duration write_timeout = Duration::Seconds(30);  // without a byte taken by the client
  Duration linger_timeout = Duration::Seconds(2);  // for the client to close after the last reply
};

class SessionGroup;
class Listener;

class HttpServer {
 public:
  // Listening when it returns. The handler must live as long as the server.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   HttpHandler handler);
  // Stop(0).
  ~HttpServer();

  uint16_t port() const;                                              // 0 on a unix socket
  const UnixSocketFile& socket_file() const { return socket_file_; }  // Stop removes it
  size_t connections() const;                                         // open now; any thread

  // Stops accepting, closes idle connections, lets replies under way finish for at most `limit`,
  // then cuts the rest (their OnDisconnect runs). Returns when every connection is closed. Not on
  // an I/O thread, so not in a handler.
  void Stop(Duration limit);

 private:
  HttpServer() = default;

  std::vector<std::unique_ptr<SessionGroup>> groups_;
  std::unique_ptr<Listener> listener_;
  UnixSocketFile socket_file_;
  bool stopped_ = false;
};

}  // namespace millrace::net
