// HttpServer: an HTTP/1.1 server over TCP, TLS or a unix socket, with limits on every request. It
// owns one accepting thread and `io_threads` I/O threads; each connection lives on one of the
// latter. The handler runs there and may answer from any thread (net/http/http.h).
//
// A connection handles one request at a time. Requests that a client sends ahead wait until the
// reply before them is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/http/http.h"
#include "net/http/http1.h"
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
  size_t connections_max = 20'000;  // beyond it: a few get a 503, the rest are closed
  // Of bodies that are being received, of all clients and of one address: 503. Others that have
  // the address of one proxy share its part.
  size_t body_bytes_in_all_max = 256u << 20;
  size_t body_bytes_per_address_max = 128u << 20;
  size_t unread_bytes_max = 256 * 1024;   // queued for a slow client before it is cut off
  size_t send_buffer_bytes = 256 * 1024;  // requested from the kernel per connection

  Duration head_timeout = Duration::Seconds(15);  // from the first byte of a request; TLS too
  Duration idle_timeout = Duration::Seconds(75);  // between requests
  // A body must arrive at this rate, else 408. It counts anew whenever `body_grace` at this rate
  // has arrived, so that a fast beginning is no credit for a long wait.
  Duration body_grace = Duration::Seconds(15);
  size_t body_bytes_per_second_min = 1024;
  Duration write_timeout = Duration::Seconds(30);  // without a byte accepted by the client
  Duration linger_timeout = Duration::Seconds(2);  // for the client to close after the last reply
};

class BodyMemory;
class SessionGroup;
class Listener;

class HttpServer {
 public:
  // The server listens when this returns. What the handler refers to must outlive the server.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   HttpHandler handler);
  // Calls Stop with a limit of 0.
  ~HttpServer();

  uint16_t port() const;                                              // 0 on a unix socket
  const UnixSocketFile& socket_file() const { return socket_file_; }  // Stop removes it
  size_t connections() const;                                         // open now; any thread

  // Reads the certificate and its key again, for connections that are accepted from now on. An
  // error leaves everything as it was. REQUIRES: TLS. Any thread but one that stops the server.
  Status ReloadTls();

  // Stops accepting, closes idle connections, waits at most `limit` for replies in progress, then
  // closes the remaining connections (their OnDisconnect runs). Returns when every connection is
  // closed. Must not be called on an I/O thread, so not in a handler.
  void Stop(Duration limit);

 private:
  HttpServer();

  std::string tls_certificate_path_, tls_key_path_;
  std::unique_ptr<BodyMemory> bodies_;
  std::vector<std::unique_ptr<SessionGroup>> groups_;
  std::unique_ptr<Listener> listener_;
  UnixSocketFile socket_file_;
  bool stopped_ = false;
};

}  // namespace millrace::net
