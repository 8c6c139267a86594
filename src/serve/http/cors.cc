#include "serve/http/cors.h"

#include <algorithm>
#include <cctype>

namespace millrace::serve {
namespace {

constexpr size_t kRequestedHeadersBytesMax = 4096;
constexpr char kPreflightMaxAgeS[] = "600";
constexpr char kDefaultHeaders[] = "authorization, content-type, x-request-id";

bool HeaderNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == ',' ||
         c == ' ';
}

}  // namespace

Headers CorsHeaders(const net::HttpRequest& request, const std::vector<std::string>& allowed) {
  const auto origin = request.Header("origin");
  if (!origin) return {};
  constexpr char kExposed[] =
      "x-request-id, x-stream-id, retry-after, x-should-retry, x-millrace-ignored";
  if (std::find(allowed.begin(), allowed.end(), "*") != allowed.end()) {
    return {{"access-control-allow-origin", "*"}, {"access-control-expose-headers", kExposed}};
  }
  if (std::find(allowed.begin(), allowed.end(), *origin) == allowed.end()) {
    return {{"vary", "origin"}};
  }
  return {{"access-control-allow-origin", std::string(*origin)},
          {"access-control-expose-headers", kExposed},
          {"vary", "origin"}};
}

net::HttpResponse PreflightResponse(const net::HttpRequest& request, const std::string& allow) {
  net::HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("allow", allow + ", OPTIONS");
  response.headers.emplace_back("access-control-allow-methods", allow + ", OPTIONS");
  response.headers.emplace_back("access-control-max-age", kPreflightMaxAgeS);
  std::string names(request.Header("access-control-request-headers").value_or(kDefaultHeaders));
  const bool plain = names.size() <= kRequestedHeadersBytesMax &&
                     std::all_of(names.begin(), names.end(), HeaderNameCharacter);
  response.headers.emplace_back("access-control-allow-headers", plain ? names : kDefaultHeaders);
  return response;
}

}  // namespace millrace::serve
