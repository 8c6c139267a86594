// Url: the address that an HTTP client calls: http or https, host, port and path. Plain values; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::net {

inline constexpr size_t kUrlBytesMax = 8 * 1024;

struct Url {
  bool https = false;
  // A name or an address; IPv6 without brackets, its zone after '%': "fe80::1%eth0".
  std::string host;
  uint16_t port = 80;
  std::string target = "/";  // path and query, as given

  // "http://127.0.0.1:8000/v1", with brackets around IPv6 and without a default port.
  std::string ToString() const;
  // The value of a Host header.
  std::string HostHeader() const;
  // This URL with `path` appended to its own path, separated by one slash: "/v1" + "/models".
  Url Join(std::string_view path) const;

 private:
  std::string PortSuffix() const;
};

// Parses "http://host[:port][/path][?query]", or the same with https. A user, a fragment, spaces
// and control characters are errors. kInvalidArgument says what is wrong.
Result<Url> ParseUrl(std::string_view text);

}  // namespace millrace::net
