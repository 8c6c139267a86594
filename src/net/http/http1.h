// The HTTP/1.1 wire format of a server: a strict parser of requests that takes input in pieces of
// any size, and the formatting of response heads. No sockets. Each parser has one owner and is used
// on one thread.
//
// Boost.Beast parses the grammar. Further checks ensure that a request has only one meaning (RFC
// 9112 section 11.2, request smuggling): CRLF line ends, no folded lines, one Host, and either one
// numeric Content-Length or "Transfer-Encoding: chunked". Trailers are read and dropped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "net/http/http.h"

namespace millrace::net {

// Each comment gives the status code of a request beyond the limit.
struct HttpLimits {
  size_t head_bytes_max = 32 * 1024;   // request line and headers: 431
  size_t target_bytes_max = 8 * 1024;  // the request target: 414
  size_t headers_max = 128;            // number of headers: 431
  size_t body_bytes_max = 16u << 20;   // 413
};

// Limit of a chunk's size line with its extensions, and of the trailers: 400.
inline constexpr size_t kChunkLineBytesMax = 8 * 1024;

enum class HttpStage { kHead, kBody, kDone, kFailed };

// Why a message was refused. A server sends both fields to the client.
struct HttpFailure {
  int status = 400;
  std::string message;
};

// Parses one request. After kDone or kFailed, the next request needs a new parser.
class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();

  // `data` is everything that has arrived and was not consumed yet. Returns the number of bytes
  // consumed now. The caller keeps the rest and passes it again with the bytes that follow.
  size_t Feed(std::string_view data);

  HttpStage stage() const;
  const HttpFailure& failure() const;  // REQUIRES: kFailed

  // Valid from kBody on.
  bool expects_continue() const;
  bool keep_alive() const;  // for HTTP/1.0 only if the client asks for it
  bool http_1_0() const;
  size_t body_bytes() const;  // so far

  HttpRequest TakeRequest();  // REQUIRES: kDone; once

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

// Appends `part` to `out` as one chunk of the chunked coding. REQUIRES: part is not empty.
void AppendChunk(std::string_view part, std::string* out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
// An interim response: the client goes on waiting for the final one.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace millrace::net
