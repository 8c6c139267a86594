// CORS: the headers that let web pages call the server from a browser. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "net/http/http.h"
#include "serve/http/decorated_reply.h"

namespace millrace::serve {

// The CORS headers of an answer to `request`. They grant nothing if the request has no Origin or
// one that is not allowed. `allowed` holds origins ("https://chat.example") or "*".
Headers CorsHeaders(const net::HttpRequest& request, const std::vector<std::string>& allowed);

// The answer to a preflight request, without CorsHeaders. Allows the headers that the page asks for
// by name, so that the X-Stainless-* headers of official clients pass.
net::HttpResponse PreflightResponse(const net::HttpRequest& request, const std::string& allow);

}  // namespace millrace::serve
