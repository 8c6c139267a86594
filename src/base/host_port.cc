#include "base/host_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/log.h"

namespace millrace {
namespace {

constexpr std::string_view kStar = "*", kEveryInterface = "0.0.0.0";
constexpr size_t kHostBytesMax = 255;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

// With an optional zone.
bool IsIpv6(std::string_view text) {
  const size_t percent = text.find('%');
  if (percent != std::string_view::npos) {
    const std::string_view zone = text.substr(percent + 1);
    if (zone.empty() || !std::ranges::all_of(zone, IsNameByte)) return false;
  }
  in6_addr address;
  return inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &address) == 1;
}

Status NotAHost(std::string_view text) {
  return InvalidArgument(
      fmt::format("must be a host, that is a name, an IPv4 address, or an IPv6 address such as "
                  "[::1], got '{}'",
                  Printable(text, 80)));
}

}  // namespace

bool IsEveryAddress(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

std::string BracketedHost(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

std::string HostPort::ToString() const { return fmt::format("{}:{}", BracketedHost(host), port); }

Result<std::string> ParseHost(std::string_view text) {
  if (text == kStar) return std::string(kEveryInterface);
  if (text.empty() || text.size() > kHostBytesMax) return NotAHost(text);
  if (text.front() == '[') {
    const std::string_view inside = text.substr(1, text.size() - 2);
    if (text.back() != ']' || text.size() < 2 || !IsIpv6(inside)) return NotAHost(text);
    return std::string(inside);
  }
  if (text.find(':') == std::string_view::npos) {
    if (!std::ranges::all_of(text, IsNameByte)) return NotAHost(text);
    return std::string(text);
  }
  if (!IsIpv6(text)) return NotAHost(text);
  return std::string(text);
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  // "[::1]" and "::1" end within the host.
  const bool has_port = colon != std::string_view::npos && text.find(']', colon) == text.npos &&
                        colon + 1 < text.size();
  unsigned port = 0;
  if (has_port) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
    if (error != std::errc() || at != end || port > 65535) {
      return InvalidArgument(
          fmt::format("must have a port from 0 to 65535, got '{}'", Printable(text, 80)));
    }
  }
  if (!has_port || colon == 0) {
    return InvalidArgument(fmt::format(
        "must be HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000, got '{}'", Printable(text, 80)));
  }
  HostPort address;
  MR_ASSIGN_OR_RETURN(address.host, ParseHost(text.substr(0, colon)));
  address.port = static_cast<uint16_t>(port);
  return address;
}

}  // namespace millrace
