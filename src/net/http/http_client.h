// HttpClient: an HTTP/1.1 client over TCP, TLS or a unix socket. Fetch runs
// thousands of requests at once on the client's own thread; Call waits for one. Connections are
// reused.
//
// Any thread may use the client. Callbacks run on the client's thread and must not block. A
// callback may call Fetch and Cancel, but neither Call nor the destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "net/http/http.h"
#include "net/url.h"

namespace millrace::net {

struct HttpClientOptions {
  Duration connect_timeout = Duration::Seconds(10);  // name lookup, TCP and TLS
  Duration read_timeout = Duration::Seconds(600);    // without a byte from the server
  size_t idle_connections_max = 4096;                // kept for reuse, for all servers together
  size_t body_bytes_max = 1u << 30;                  // of a response
  bool verify_tls = true;
  std::string tls_authority_path;  // PEM; empty: the system's
};

struct HttpCall {
  std::string method = "GET";
  Url url;
  HttpHeaders headers;  // Host and Content-Length are added
  std::string body;
  // If set, the client connects to this unix socket instead, without TLS; Host is that of the URL.
  std::string unix_path;
};

struct FetchCallbacks {
  std::function<void(int status, const HttpHeaders& headers)> on_head;  // may be null
  std::function<void(std::string_view part)> on_data;                   // may be null
  // Called exactly once, after the others. Ok when the whole response arrived, with any status
  // code; kUnavailable when the connection failed or was lost; kDeadlineExceeded; kCancelled;
  // kInternal for a response that is not HTTP.
  std::function<void(Status)> on_done;
};

using FetchId = StrongId<struct FetchIdTag>;

class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> Start(const HttpClientOptions& options);
  // Cancels all fetches in progress. Every on_done has run when it returns.
  ~HttpClient();

  FetchId Fetch(HttpCall call, FetchCallbacks callbacks);
  // on_done gets kCancelled, unless the fetch has ended already.
  void Cancel(FetchId id);

  // Waits for the whole response. With `on_data`, the body is passed to it (on the client's thread)
  // instead of being stored in the result.
  Result<HttpResponse> Call(HttpCall call, std::function<void(std::string_view)> on_data = nullptr);

 private:
  struct Hub;
  class Exchange;
  explicit HttpClient(std::unique_ptr<Hub> hub);

  std::unique_ptr<Hub> hub_;
};

}  // namespace millrace::net
