// Grammars of answers that call tools. Pure functions; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "core/ids.h"
#include "text/json_text.h"
#include "text/tool_format.h"

namespace millrace::text {

// White space between the tokens of JSON, as a regular expression. Small models may write it
// without end where the grammar lets them.
inline constexpr char kJsonWhiteSpace[] = "[ \\t]{1,2}|\\n[ \\t]{0,40}";

// The id of a marker that is a special token; nullopt: it is text.
using SpecialTokenId = std::function<std::optional<TokenId>(std::string_view)>;

// Whether CallGrammar has a grammar for the format.
bool HasCallGrammar(const ToolFormat& format);
struct CallsWanted {
  bool many = true;  // as many as the model likes, or one
  int first = 0;     // the number of the first one, if the family numbers calls
};
// Calls of these tools and nothing else, as SamplingParams::grammar. `tools`: the request's, each
// {"type": "function", "function": {...}}. REQUIRES: HasCallGrammar(format).
std::string CallGrammar(const ToolFormat& format, const OrderedJson& tools,
                        const CallsWanted& wanted, const SpecialTokenId& special);
// Free text in which each call is one of these tools with its arguments. nullopt: the format has no
// text that begins calls.
std::optional<std::string> FreeCallGrammar(const ToolFormat& format, const OrderedJson& tools);

}  // namespace millrace::text
