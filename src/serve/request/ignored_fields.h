// Request fields that the server accepts without effect. An answer names them in the header
// X-Millrace-Ignored. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/request/field_reader.h"

namespace millrace::serve {

inline constexpr char kIgnoredHeader[] = "x-millrace-ignored";
inline constexpr size_t kIgnoredNamesMax = 16;      // further names become "..."
inline constexpr size_t kIgnoredNameBytesMax = 64;  // longer names are cut

// Fields of OpenAI and vLLM that both generation endpoints accept without effect.
void IgnoreKnownFields(FieldReader& reader);
// Such fields that only /v1/chat/completions has.
void IgnoreKnownChatFields(FieldReader& reader);

// Names the fields inside messages, tools and tool_choice that have no effect. The template gets
// messages and tools whole: what it may show has an effect.
void IgnoreUnknownInConversation(FieldReader& reader, std::string_view chat_template);

// The value of the header: the ignored and the unknown fields, separated by commas; "" if there are
// none. Characters that are unsafe in a header become '?'.
std::string IgnoredHeaderValue(const FieldReader& reader);
// The same of two values, `first` with its names changed by `rename`.
std::string JoinIgnored(std::string_view first, std::string_view second,
                        const std::function<std::string(std::string_view)>& rename);

}  // namespace millrace::serve
