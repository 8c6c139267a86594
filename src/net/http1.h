// HTTP/1.1 messages as bytes: strict parsers that take input in any pieces, and the writer of
// response heads. Pure: no sockets, no clock. One owner, one thread.
//
// The grammar is Boost.Beast's; in front of it stand rules that leave a request only one meaning
// (RFC 9112 section 11.2, request smuggling): CRLF line ends, no folded lines, one Host, either one
// numeric Content-Length or "Transfer-Encoding: chunked". Trailers are read and dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/http.h"

namespace millrace::net {

struct HttpLimits {
  size_t head_bytes_max = 32 * 1024;   // request line and headers: 431
  size_t target_bytes_max = 8 * 1024;  // the request target: 414
  size_t headers_max = 128;            // how many: 431
  size_t body_bytes_max = 16u << 20;   // 413
};

// A chunk's size line with its extensions, and the trailers: 400.
inline constexpr size_t kChunkLineBytesMax = 8 * 1024;

enum class HttpStage { kHead, kBody, kDone, kFailed };

// What to tell the client whose message cannot be taken.
struct HttpFailure {
  int status = 400;
  std::string message;
};

// One request. After kDone or kFailed a new parser is needed for the next one.
class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();

  // `data` is everything that has arrived and was not consumed yet. Returns how many of its bytes
  // are consumed now; the caller keeps the rest and presents it again with what follows.
  size_t Feed(std::string_view data);

  HttpStage stage() const;
  const HttpFailure& failure() const;  // REQUIRES: kFailed

  // From kBody on.
  bool expects_continue() const;
  bool keep_alive() const;  // for HTTP/1.0 only if it asks for it
  bool http_1_0() const;
  size_t body_bytes() const;  // so far

  HttpRequest TakeRequest();  // REQUIRES: kDone; once

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One response. Head and body go to sinks as they come; the body is not kept.
class ResponseParser {
 public:
  struct Sinks {
    std::function<void(int status, const HttpHeaders& headers)> on_head;  // may be null
    std::function<void(std::string_view part)> on_body;                   // may be null
  };

  // `head_request`: the answer to HEAD, which has no body whatever its headers say.
  ResponseParser(const HttpLimits& limits, bool head_request, Sinks sinks);
  ~ResponseParser();

  size_t Feed(std::string_view data);  // as RequestParser::Feed
  void FeedEof();                      // the peer has closed

  HttpStage stage() const;
  const HttpFailure& failure() const;  // REQUIRES: kFailed

  // From kBody on.
  int status() const;
  const HttpHeaders& headers() const;
  bool keep_alive() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How the body of a response is delimited.
enum class BodyFraming { kContentLength, kChunked, kUntilClose };

// The head of a response up to the empty line, with Date, Server and Connection. Control characters
// in header values become spaces. 1xx, 204 and 304 get no framing header.
std::string FormatResponseHead(int status, const HttpHeaders& headers, BodyFraming framing,
                               size_t content_bytes, bool keep_alive);

// One chunk of the chunked coding around `part`, appended to `out`. REQUIRES: part is not empty.
void AppendChunk(std::string_view part, std::string* out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
// An interim response: clients wait on for the one that counts.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace millrace::net
