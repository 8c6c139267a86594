#include "serve/http/router.h"

namespace millrace::serve {
namespace {

bool Matches(const Route& route, std::string_view path) {
  if (route.kind == PathKind::kExact) return path == route.path;
  return path.size() > route.path.size() && path.starts_with(route.path);
}

}  // namespace

std::string WithoutStraySlashes(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

std::optional<std::string_view> BelowRoot(std::string_view path, std::string_view root) {
  if (root.empty() || !path.starts_with(root)) return std::nullopt;
  const std::string_view rest = path.substr(root.size());
  if (rest.empty()) return "/";
  return rest.front() == '/' ? std::optional(rest) : std::nullopt;
}

RouteTable::Match RouteTable::Find(std::string_view method, std::string_view path) const {
  // HEAD is GET without the body (RFC 9110 section 9.3.2); net leaves the body out.
  if (method == "HEAD") method = "GET";
  Match match;
  for (const Route& route : routes_) {
    if (!Matches(route, path)) continue;
    match.on_path = &route;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method;
    if (route.method == "GET") match.allow += ", HEAD";
    if (route.method != method) continue;
    match.route = &route;
    match.rest = path.substr(route.path.size());
  }
  return match;
}

}  // namespace millrace::serve
