// HubClient: calls of the hub's HTTP interface, one at a time, over libcurl. It follows redirects
// itself: the token goes to the hub's own address only, and no redirect leads away from TLS. It
// owns its connections. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ops/hub/access.h"

namespace millrace::ops {

// What the last answer of a call says before its body, and what the hub said of the file before it
// redirected.
struct HubHead {
  int status = 0;
  std::string etag;                    // of the file, without quotes
  bool linked = false;                 // it lies in large-file storage; the etag is its SHA-256
  std::optional<int64_t> file_bytes;   // of such a file
  std::optional<int64_t> body_bytes;   // Content-Length
  std::optional<int64_t> begin;        // of Content-Range
  std::string error_code, error_text;  // the hub's, for refusals
  std::optional<double> retry_after_s;
};

struct HubCall {
  std::string path;        // below the endpoint
  std::string what;        // for messages: "org/name, config.json"
  bool head_only = false;  // of a file: the hub's own answer, without a redirect to its storage
  int64_t offset = 0;      // if not 0, asks for the bytes from there
  // The head of a 2xx answer, then its body. An error ends the call, which returns it.
  std::function<Status(const HubHead&)> on_head;
  std::function<Status(std::string_view part)> on_data;
};

// `status`: kUnavailable, kDeadlineExceeded and kResourceExhausted may be tried again; kNotFound,
// kUnauthenticated and all others not. It names no address that a redirect led to, because such an
// address may be signed.
struct HubResult {
  Status status;
  int http_status = 0;
  std::optional<double> retry_after_s;
};

class HubClient {
 public:
  static Result<std::unique_ptr<HubClient>> Create(HubAccess access);
  ~HubClient();

  HubResult Call(const HubCall& call);
  // Of the hub, for messages.
  const std::string& host() const { return access_.endpoint.host; }

 private:
  struct Connection;
  explicit HubClient(HubAccess access);
  Result<std::string> Hop(const HubCall& call, const net::Url& url, HubHead& head);

  const HubAccess access_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace millrace::ops
