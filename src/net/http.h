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

#include "base/status.h"

namespace millrace::net {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The first value of that name, in any case.
std::optional<std::string_view> FindHeader(const HttpHeaders& headers, std::string_view name);

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // decoded, without query: "/v1/models"; valid UTF-8, no control characters
  std::string query;    // as sent, without '?'; see ParseQuery
  HttpHeaders headers;  // as sent
  std::string body;
  std::string peer;  // "127.0.0.1:51324", for logs

  // The first header of that name, in any case.
  std::optional<std::string_view> Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  // Content-Length, Transfer-Encoding, Date and Server are the transport's own and dropped here.
  HttpHeaders headers;
  std::string body;
};

// The way back for one request. Any thread may call; calls after the client has gone do nothing.
// Exactly one of Send or (Start, Write..., End) is used. Dropping the last reference without an
// answer sends a 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Send(HttpResponse response) = 0;

  // A chunked response (server-sent events): head first, then parts as they come. Dropping the
  // last reference before End cuts the connection, so that the client sees the break.
  virtual void Start(HttpResponse head) = 0;  // head.body is ignored
  // False when the client has gone or does not read: more than the server's limit of unread bytes
  // waits for it, and the connection has been cut.
  virtual bool Write(std::string part) = 0;
  virtual void End() = 0;

  // Called once, from any thread, when the client goes away before End or Send (or is cut). At once
  // if that has happened already. A client that closes only its sending half has not gone, except
  // with TLS or HTTP/1.0.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
  virtual bool disconnected() const = 0;
};

// Called on the server's I/O threads; must not block for long.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

// "%2F" and the like undone; '+' stays. kInvalidArgument for a '%' without two hex digits.
Result<std::string> PercentDecode(std::string_view text);

// "a=1&b=x+y%21" as pairs in order, '+' meaning a space. kInvalidArgument for bad escapes and for
// more than kQueryPairsMax pairs.
inline constexpr size_t kQueryPairsMax = 256;
Result<HttpHeaders> ParseQuery(std::string_view query);

struct HttpTarget {
  std::string path;
  std::string query;
};

// A request target in origin form ("/a?b"), absolute form ("http://host/a?b") or "*". The path is
// decoded once and must then be valid UTF-8 without control characters; "//" and ".." are kept, so
// that whoever routes and whoever authorises see the same text.
Result<HttpTarget> ParseTarget(std::string_view target);

// An OpenAI error body: {"error": {"message", "type", "param": null, "code": null}}.
HttpResponse ErrorResponse(int status, std::string_view message);

// "Not Found"; "Unknown" for codes without a name.
std::string_view StatusReason(int status);

}  // namespace millrace::net
