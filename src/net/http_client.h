// An HTTP/1.1 client, over TCP, TLS or a unix socket, for the tools and tests: thousands of
// requests at once on one thread of its own, or one at a time with Call. Connections are kept and
// used again.
//
// The client is used from any thread; callbacks run on its thread and must be quick. A callback may
// call Fetch and Cancel, but not Call and not the destructor.
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
#include "net/http.h"
#include "net/url.h"

namespace millrace::net {

struct HttpClientOptions {
  Duration connect_timeout = Duration::Seconds(10);  // name, TCP and TLS
  Duration read_timeout = Duration::Seconds(600);    // without a byte from the server
  size_t idle_connections_max = 4096;                // kept for later, over all servers
  size_t body_bytes_max = 1u << 30;                  // of a response
  bool verify_tls = true;
  std::string tls_authority_path;  // PEM; empty: the system's
};

struct HttpCall {
  std::string method = "GET";
  Url url;
  HttpHeaders headers;  // Host and Content-Length are added
  std::string body;
  // Connects to this unix socket instead, without TLS; Host is that of the URL.
  std::string unix_path;
};

struct FetchCallbacks {
  std::function<void(int status, const HttpHeaders& headers)> on_head;  // may be null
  std::function<void(std::string_view part)> on_data;                   // may be null
  // Once, last, always. Ok when the whole response came, whatever its status code; kUnavailable
  // when there is no connection or it broke, kDeadlineExceeded, kCancelled, kInternal for a
  // response that is not HTTP.
  std::function<void(Status)> on_done;
};

using FetchId = StrongId<struct FetchIdTag>;

class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> Start(const HttpClientOptions& options);
  // Cancels what is under way; every on_done has run when it returns.
  ~HttpClient();

  FetchId Fetch(HttpCall call, FetchCallbacks callbacks);
  // on_done follows with kCancelled, unless the fetch is over.
  void Cancel(FetchId id);

  // Waits for the whole response. With `on_data` the body goes there (on the client's thread) and
  // stays out of the result.
  Result<HttpResponse> Call(HttpCall call, std::function<void(std::string_view)> on_data = nullptr);

 private:
  struct Hub;
  class Exchange;
  explicit HttpClient(std::unique_ptr<Hub> hub);

  std::unique_ptr<Hub> hub_;
};

}  // namespace millrace::net
