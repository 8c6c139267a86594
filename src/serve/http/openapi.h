// The OpenAPI document of the main port's routes: openapi.json beside this file, built into the
// program. tests/structure/check_openapi.py holds it against the routes and the parsers. Any
// thread.
#pragma once

#include <string>

#include "base/json.h"

namespace millrace::serve {

// `root_path`: what precedes its paths; empty: nothing.
Json OpenApiDocument(const std::string& version, const std::string& root_path);

}  // namespace millrace::serve
