// JSON from outside: nlohmann's parser behind a depth limit, so that nesting cannot exhaust the
// stack, and with errors as Status.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace millrace {

using Json = nlohmann::json;

inline constexpr int kJsonDepthMax = 64;

// kInvalidArgument with the byte position for malformed text, invalid UTF-8, or deeper nesting
// than `depth_max`.
Result<Json> ParseJson(std::string_view text, int depth_max = kJsonDepthMax);

// The same, with the keys in the order of the text.
Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text,
                                                int depth_max = kJsonDepthMax);

// Serialises; invalid UTF-8 in strings becomes U+FFFD instead of throwing.
std::string DumpJson(const Json& value);

}  // namespace millrace
