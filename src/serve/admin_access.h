// Who may administer the cluster. Pure functions over one request.
//
// With an admin key: whoever sends it. Without one: only programs on this machine that call by
// address or as localhost. A browser there is no such program, for a page of anybody may drive it,
// and neither is a proxy, for anybody may be behind it.
#pragma once

#include <optional>

#include "net/http.h"
#include "serve/api_error.h"
#include "serve/auth.h"

namespace millrace::serve {

// nullopt: it may.
std::optional<ApiError> RefuseAdmin(const net::HttpRequest& request, const ApiKeys& admin_keys);

// "127.0.0.1:51324", "[::1]:80" and "[::ffff:127.0.0.1]:80" are.
bool IsLoopbackPeer(std::string_view peer);

}  // namespace millrace::serve
