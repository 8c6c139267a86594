// The prompts of `generate`: lines of text, or JSON lines in OpenAI's batch format or as bodies of
// /v1/completions. Untrusted text; errors name the line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::apps {

inline constexpr size_t kPromptFileBytesMax = size_t{1} << 30;
inline constexpr size_t kPromptsMax = 10'000'000;

enum class PromptEndpoint { kCompletion, kChat };

struct PromptItem {
  std::string id;  // custom_id, or "LINE-HASH": a line that changes gets a new id
  PromptEndpoint endpoint = PromptEndpoint::kCompletion;
  bool batch = false;  // OpenAI's batch format: the result is in it too
  std::string body;    // JSON text of the request, the client's fields in their order
};

// Lines are JSON when the first one that is not empty begins with '{', else each line is a prompt;
// empty lines are skipped. `defaults` is JSON text of an object: fields for bodies that lack them.
// kInvalidArgument for a malformed line, a duplicate id, an unknown url.
Result<std::vector<PromptItem>> ParsePrompts(std::string_view text, const std::string& defaults);

}  // namespace millrace::apps
