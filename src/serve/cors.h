// CORS: which web pages may call the server from a browser. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "net/http.h"
#include "serve/decorated_reply.h"

namespace millrace::serve {

// The headers of an answer to `request`; none when it came from no page or a page not allowed.
// `allowed` holds origins ("https://chat.example") or "*".
Headers CorsHeaders(const net::HttpRequest& request, const std::vector<std::string>& allowed);

// The answer to a preflight, beside CorsHeaders. The headers a page asks for are allowed by name,
// so that official clients' X-Stainless-* pass.
net::HttpResponse PreflightResponse(const net::HttpRequest& request, const std::string& allow);

}  // namespace millrace::serve
