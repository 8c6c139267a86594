// What is served where, and who may call it. Pure functions.
//
// The main port is for clients and has no admin route: whether a call to it comes from this machine
// cannot be known, for a proxy on this machine calls for the whole world. Operators have a unix
// socket that only the server's user reaches and, where it is asked for, an address with a key.
#pragma once

#include <optional>
#include <string_view>

#include "net/http.h"
#include "serve/api_error.h"
#include "serve/auth.h"

namespace millrace::serve {

enum class Endpoint {
  kMain,         // the port that clients use
  kAdminSocket,  // the unix socket: no key is needed
  kAdminListen,  // the address of --admin-listen: every call needs an admin key
};

enum class Access {
  kOpen,     // on every endpoint
  kKeyed,    // on the main port, with an API key where there are keys
  kMonitor,  // as kKeyed, and on the admin endpoints as well
  kAdmin,    // on the admin endpoints
};

bool ServedOn(Endpoint endpoint, Access access);

// /cluster, /debug and every path below them. The main port has none of them, whatever the method.
bool IsAdminPath(std::string_view path);
ApiError AdminIsElsewhere();

// nullopt: the call has one of the keys.
std::optional<ApiError> RefuseWithoutAdminKey(const net::HttpRequest& request,
                                              const ApiKeys& admin_keys);

}  // namespace millrace::serve
