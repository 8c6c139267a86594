// What a chat template wants the content of messages to be: a string, or a list of parts as
// OpenAI's API has it. Pure functions; any thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/status.h"

namespace millrace::text {

enum class ContentFormat {
  kAuto,    // what the template was found to want
  kString,  // a string for all roles
  kParts,   // a list of parts for all roles ("openai")
};

// What a template was found to want, by role.
struct ContentForms {
  std::set<std::string, std::less<>> takes_parts;  // shows the text of parts as that of a string
  std::set<std::string, std::less<>> needs_parts;  // shows nothing of a string
  bool needs_null_with_calls = false;              // shows calls only beside content that is null
};

// Renders a list of messages.
using RenderMessages = std::function<Result<std::string>(const nlohmann::ordered_json& messages)>;

// Finds it out: shows the template short conversations, with content of both kinds.
ContentForms FindContentForms(ContentFormat format, const RenderMessages& render);

// Gives each message's content the form that the template wants for its role. A list of parts that
// becomes a string is joined by newlines, as in vLLM. Content that is missing or null becomes the
// empty string. REQUIRES: content is null, a string, or a list of objects with a string "text".
void ShapeContent(const ContentForms& forms, nlohmann::ordered_json& messages);

}  // namespace millrace::text
