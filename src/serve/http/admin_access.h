// The routes that each endpoint serves, and the callers it admits. Pure functions, any thread.
//
// The main port is for clients and has no admin routes. It cannot tell whether a call comes from
// this machine, because a proxy on this machine may forward calls from anywhere. Operators use a
// unix socket that only the server's user can open and, if configured, an address that needs a key.
#pragma once

#include <optional>
#include <string_view>

#include "net/http/http.h"
#include "serve/http/api_error.h"
#include "serve/http/auth.h"

namespace millrace::serve {

enum class Endpoint {
  kMain,         // the port that clients use
  kAdminSocket,  // the unix socket: no key is needed
  kAdminListen,  // the address of --admin-listen: every call needs an admin key
};

enum class Access {
  kOpen,     // on every endpoint
  kKeyed,    // on the main port; needs an API key if the server has any
  kMonitor,  // as kKeyed, and also on the admin endpoints
  kAdmin,    // on the admin endpoints only
};

bool ServedOn(Endpoint endpoint, Access access);

// True for /cluster, /debug and every path below them. The main port serves none of them.
bool IsAdminPath(std::string_view path);
ApiError AdminIsElsewhere();

// nullopt if the request carries one of the keys, otherwise the 401.
std::optional<ApiError> RefuseWithoutAdminKey(const net::HttpRequest& request,
                                              const ApiKeys& admin_keys);

}  // namespace millrace::serve
