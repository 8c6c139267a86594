#include "serve/http/admin_access.h"

namespace millrace::serve {

bool ServedOn(Endpoint endpoint, Access access) {
  switch (access) {
    case Access::kOpen:
    case Access::kMonitor: return true;
    case Access::kKeyed: return endpoint == Endpoint::kMain;
    case Access::kAdmin: return endpoint != Endpoint::kMain;
  }
  return false;
}

bool IsAdminPath(std::string_view path) {
  for (const std::string_view root : {"/cluster", "/debug"}) {
    if (!path.starts_with(root)) continue;
    if (path.size() == root.size() || path[root.size()] == '/') return true;
  }
  return false;
}

ApiError AdminIsElsewhere() {
  return {.status = 404,
          .message =
              "Admin routes are not served on this port. Use the unix socket of the server's user "
              "(`millrace status` on the server's machine finds it) or the address of "
              "--admin-listen.",
          .code = "not_found"};
}

std::optional<ApiError> RefuseWithoutAdminKey(const net::HttpRequest& request,
                                              const ApiKeys& admin_keys) {
  if (admin_keys.Match(request.Header("authorization"))) return std::nullopt;
  return ApiError{.status = 401,
                  .message =
                      "This address needs the admin key: send the header 'Authorization: Bearer "
                      "KEY' (millrace takes the key from --admin-key or MILLRACE_ADMIN_KEY).",
                  .code = "invalid_admin_key"};
}

}  // namespace millrace::serve
