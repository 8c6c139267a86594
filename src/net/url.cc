#include "net/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/host_port.h"

namespace millrace::net {
namespace {

constexpr uint16_t kHttpPort = 80;
constexpr uint16_t kHttpsPort = 443;

bool IsHostByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

Status ParsePort(std::string_view text, uint16_t* port) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > 65535) {
    return InvalidArgument("the port in a URL must be a number from 1 to 65535");
  }
  *port = static_cast<uint16_t>(value);
  return OkStatus();
}

// "host", "host:port", "[::1]" or "[::1]:port".
Status ParseAuthority(std::string_view text, Url* url) {
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return InvalidArgument("'[' without ']' in a URL");
    // "%25" introduces a zone (RFC 6874); a bare '%' is what people write.
    url->host = text.substr(1, close - 1);
    if (const size_t zone = url->host.find("%25"); zone != std::string::npos) {
      url->host.erase(zone + 1, 2);
    }
    rest = text.substr(close + 1);
    if (url->host.find(':') == std::string::npos || !ParseHost(url->host).ok()) {
      return InvalidArgument("the address in brackets in a URL is not IPv6");
    }
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    url->host = text.substr(0, colon);
    rest = text.substr(colon);
    if (!std::all_of(url->host.begin(), url->host.end(), IsHostByte)) {
      return InvalidArgument("the host in a URL may have letters, digits, '.', '-' and '_' only");
    }
  }
  if (url->host.empty()) return InvalidArgument("a URL needs a host: http://host:port");
  if (rest.empty()) return OkStatus();
  if (!rest.starts_with(':')) return InvalidArgument("unexpected text after the host in a URL");
  return ParsePort(rest.substr(1), &url->port);
}

}  // namespace

std::string Url::PortSuffix() const {
  return port == (https ? kHttpsPort : kHttpPort) ? "" : fmt::format(":{}", port);
}

// A zone has a meaning on this machine only.
std::string Url::HostHeader() const {
  return BracketedHost(host.substr(0, host.find('%'))) + PortSuffix();
}

std::string Url::ToString() const {
  std::string written = host;
  if (const size_t zone = host.find('%'); zone != std::string::npos) written.insert(zone + 1, "25");
  return fmt::format("{}://{}{}{}", https ? "https" : "http", BracketedHost(written), PortSuffix(),
                     target);
}

Url Url::Join(std::string_view path) const {
  Url joined = *this;
  joined.target = target.substr(0, target.find('?'));
  while (joined.target.ends_with('/')) joined.target.pop_back();
  if (!path.starts_with('/')) joined.target += '/';
  joined.target += path;
  return joined;
}

Result<Url> ParseUrl(std::string_view text) {
  if (text.size() > kUrlBytesMax) {
    return InvalidArgument(
        fmt::format("a URL may have at most {} bytes, got {}", kUrlBytesMax, text.size()));
  }
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  if (!plain) {
    return InvalidArgument("a URL must not contain spaces, control or non-ASCII characters");
  }
  Url url;
  if (text.starts_with("https://")) {
    url.https = true;
    url.port = kHttpsPort;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return InvalidArgument("a URL must start with http:// or https://");
  }
  if (text.find('#') != std::string_view::npos) {
    return InvalidArgument("a URL must not contain a fragment ('#')");
  }
  const size_t slash = std::min(text.find_first_of("/?"), text.size());
  MR_RETURN_IF_ERROR(ParseAuthority(text.substr(0, slash), &url));
  const std::string_view target = text.substr(slash);
  if (target.starts_with('?')) url.target += target;
  if (target.starts_with('/')) url.target = target;
  return url;
}

}  // namespace millrace::net
