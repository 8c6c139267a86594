// The HTTP types that a server and its handler share: requests, responses and event streams. They
// do not depend on sockets: net/http/http_server.h serves a handler over TCP, TLS and unix sockets,
// and tests call a handler directly.
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

// The value of the first header with that name. Names are compared case-insensitively.
std::optional<std::string_view> FindHeader(const HttpHeaders& headers, std::string_view name);

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // decoded, without query: "/v1/models"; valid UTF-8, no control characters
  std::string query;    // as sent, without '?'; see ParseQuery
  HttpHeaders headers;  // as sent
  std::string body;
  std::string peer;  // "127.0.0.1:51324", for logs

  // FindHeader in `headers`.
  std::optional<std::string_view> Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  // The transport sets Content-Length, Transfer-Encoding, Date and Server; values here are ignored.
  HttpHeaders headers;
  std::string body;
};

// Sends the response to one request. The handler and its threads share it; any thread may call it.
// Calls after the client has disconnected do nothing. A handler uses either Send, or Start,
// Write... and End. Dropping the last reference without a response sends a 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Send(HttpResponse response) = 0;

  // A streamed response (server-sent events): first the head, then the parts as they become
  // available. Dropping the last reference before End closes the connection, so that the client
  // sees that the response is incomplete.
  virtual void Start(HttpResponse head) = 0;  // head.body is ignored
  // False when the client has disconnected, or reads too slowly: more unread bytes than the server
  // allows are queued for it, and the connection has been closed.
  virtual bool Write(std::string part) = 0;
  virtual void End() = 0;

  // `callback` runs once, on any thread, when the client disconnects or is cut off before End or
  // Send. It runs at once if that has already happened. A client that closes only its sending half
  // still counts as connected, except with TLS or HTTP/1.0.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
  virtual bool disconnected() const = 0;
};

// Called on the server's I/O threads; must not block for long.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

// Decodes escapes such as "%2F"; '+' is kept. kInvalidArgument for a '%' without two hex digits.
Result<std::string> PercentDecode(std::string_view text);

// Parses "a=1&b=x+y%21" into pairs in order; '+' means a space. kInvalidArgument for invalid
// escapes and for more than kQueryPairsMax pairs.
inline constexpr size_t kQueryPairsMax = 256;
Result<HttpHeaders> ParseQuery(std::string_view query);

struct HttpTarget {
  std::string path;
  std::string query;
};

// Parses a request target in origin form ("/a?b"), absolute form ("http://host/a?b") or "*". The
// path is decoded once and must then be valid UTF-8 without control characters. "//" and ".." are
// kept, so that routing and authorisation see the same text.
Result<HttpTarget> ParseTarget(std::string_view target);

// A response with an OpenAI error body: {"error": {"message", "type", "param": null, "code":
// null}}.
HttpResponse ErrorResponse(int status, std::string_view message);

// The reason phrase of a status code, such as "Not Found"; "Unknown" for codes not listed.
std::string_view StatusReason(int status);

}  // namespace millrace::net
