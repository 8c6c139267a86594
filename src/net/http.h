// HTTP as the front end sees it: requests in, responses or event streams out, with no word of
// sockets. net/http_server.h serves it over TCP and TLS; tests call a Handler directly.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::net {

struct HttpRequest {
  std::string method;    // "GET"
  std::string path;      // decoded, without query: "/v1/models"
  std::string query;     // as sent, without '?'
  std::vector<std::pair<std::string, std::string>> headers;  // as sent
  std::string body;
  std::string peer;      // "127.0.0.1:51324", for logs

  // The first header of that name, in any case.
  std::optional<std::string_view> Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

// The way back for one request. Any thread may call; calls after the client has gone do nothing.
// Exactly one of Send or (Start, Write..., End) is used. Dropping the last reference without an
// answer sends a 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Send(HttpResponse response) = 0;

  // A chunked response (server-sent events): head first, then parts as they come.
  virtual void Start(HttpResponse head) = 0;  // head.body is ignored
  // False when the client has gone or does not read: more than the server's limit of unread bytes
  // waits for it, and the connection has been cut.
  virtual bool Write(std::string part) = 0;
  virtual void End() = 0;

  // Called once, from any thread, when the client goes away before End or Send (or is cut). At once
  // if that has happened already.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
  virtual bool disconnected() const = 0;
};

// Called on the server's I/O threads; must not block for long.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

}  // namespace millrace::net
