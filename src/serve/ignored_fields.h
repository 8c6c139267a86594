// The fields of a request that the server takes and that have no effect. An answer names them in
// the header X-Millrace-Ignored. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "serve/field_reader.h"

namespace millrace::serve {

inline constexpr char kIgnoredHeader[] = "x-millrace-ignored";
inline constexpr size_t kIgnoredNamesMax = 16;      // more are shown as "..."
inline constexpr size_t kIgnoredNameBytesMax = 64;  // a longer name is cut

// Fields of OpenAI and vLLM that both generation endpoints take without effect.
void IgnoreKnownFields(FieldReader& reader);
// Those that only /v1/chat/completions has.
void IgnoreKnownChatFields(FieldReader& reader);

// The value of the header: the ignored fields and those that no parser looked at, separated by
// commas; "" when there are none. Characters that a header must not carry become '?'.
std::string IgnoredHeaderValue(const FieldReader& reader);

}  // namespace millrace::serve
