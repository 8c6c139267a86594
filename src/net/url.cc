#include "net/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/url/grammar/alnum_chars.hpp>
#include <boost/url/grammar/lut_chars.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

namespace millrace::net {
namespace {

namespace urls = boost::urls;

constexpr uint16_t kHttpPort = 80;
constexpr uint16_t kHttpsPort = 443;

// The general syntax allows more bytes. These can be in a Host header and in a certificate.
constexpr auto kHostBytes = urls::grammar::alnum_chars + urls::grammar::lut_chars(".-_");

Status SetHost(const urls::url_view& parsed, Url* url) {
  url->host = std::string_view(parsed.encoded_host_address());
  if (url->host.empty()) return InvalidArgument("a URL needs a host: http://host:port");
  if (parsed.host_type() == urls::host_type::ipv6) return OkStatus();
  if (parsed.host_type() == urls::host_type::ipvfuture) {
    return InvalidArgument("the address in brackets in a URL is not IPv6");
  }
  if (!std::all_of(url->host.begin(), url->host.end(), kHostBytes)) {
    return InvalidArgument("the host in a URL may have letters, digits, '.', '-' and '_' only");
  }
  return OkStatus();
}

}  // namespace

std::string Url::HostHeader() const {
  std::string out = host.find(':') == std::string::npos ? host : "[" + host + "]";
  if (port != (https ? kHttpsPort : kHttpPort)) out += fmt::format(":{}", port);
  return out;
}

std::string Url::ToString() const {
  return fmt::format("{}://{}{}", https ? "https" : "http", HostHeader(), target);
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
  if (!text.starts_with("http://") && !text.starts_with("https://")) {
    return InvalidArgument("a URL must start with http:// or https://");
  }
  const auto parsed = urls::parse_uri(urls::string_view(text.data(), text.size()));
  if (parsed.has_error()) {
    return InvalidArgument(
        "malformed URL: write http://host:port/path, with an IPv6 address in brackets and with "
        "spaces and special characters percent-encoded");
  }
  if (parsed->has_userinfo()) return InvalidArgument("a URL must not contain a user or password");
  if (parsed->has_fragment()) return InvalidArgument("a URL must not contain a fragment ('#')");
  Url url;
  url.https = parsed->scheme_id() == urls::scheme::https;
  MR_RETURN_IF_ERROR(SetHost(*parsed, &url));
  const std::string_view target = parsed->encoded_target();
  // Boost 1.81 takes "http://h:8x" for port 8 and path "x".
  const bool has_rest = !target.empty() && target.front() != '/' && target.front() != '?';
  if (has_rest && !parsed->has_port()) {
    return InvalidArgument("unexpected text after the host in a URL");
  }
  if (parsed->has_port() && (has_rest || parsed->port_number() == 0)) {
    return InvalidArgument("the port in a URL must be a number from 1 to 65535");
  }
  url.port = url.https ? kHttpsPort : kHttpPort;
  if (parsed->has_port()) url.port = parsed->port_number();
  url.target = target.starts_with('/') ? "" : "/";
  url.target += target;
  return url;
}

}  // namespace millrace::net
