#include "serve/admin_access.h"

#include <arpa/inet.h>

#include <string>

namespace millrace::serve {
namespace {

// What only browsers and proxies send.
constexpr const char* kThirdPartyHeaders[] = {"origin",  "sec-fetch-site",  "forwarded",
                                              "via",     "x-forwarded-for", "x-real-ip",
                                              "referer", "x-forwarded-host"};

// "host:port" without the port, and without brackets.
std::string HostOf(std::string_view text) {
  if (text.starts_with('[')) return std::string(text.substr(1, text.find(']') - 1));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.find(':') != colon) return std::string(text);
  return std::string(text.substr(0, colon));
}

bool IsLocalName(const std::string& host) {
  uint8_t bytes[sizeof(in6_addr)];
  return host == "localhost" || inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

bool IsLoopbackPeer(std::string_view peer) {
  constexpr uint8_t kLoopbackNet = 127;
  const std::string host = HostOf(peer);
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == kLoopbackNet;
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == kLoopbackNet;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<ApiError> RefuseAdmin(const net::HttpRequest& request, const ApiKeys& admin_keys) {
  if (admin_keys.required()) {
    if (admin_keys.Match(request.Header("authorization"))) return std::nullopt;
    return ApiError{.status = 401,
                    .message =
                        "The cluster is administered with the admin key: send the header "
                        "'Authorization: Bearer KEY' (millrace takes it from --admin-key).",
                    .code = "invalid_admin_key"};
  }
  bool local = IsLoopbackPeer(request.peer);
  for (const char* header : kThirdPartyHeaders) {
    if (request.Header(header)) local = false;
  }
  // A page whose name was made to resolve to this machine calls by that name.
  const auto host = request.Header("host");
  if (host && !IsLocalName(HostOf(*host))) local = false;
  if (local) return std::nullopt;
  return ApiError{.status = 403,
                  .message =
                      "Without an admin key the cluster is administered from the "
                      "controller's machine only, called by address and not by a browser "
                      "or a proxy; start the controller with --admin-key to do it from "
                      "elsewhere.",
                  .code = "admin_key_needed"};
}

}  // namespace millrace::serve
