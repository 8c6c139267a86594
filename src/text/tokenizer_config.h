// The special tokens and chat templates of a model folder: tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, chat_template.json and
// additional_chat_templates/*.jinja, all optional. Plain data; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace millrace::text {

inline constexpr size_t kTokenizerConfigBytesMax = 16u << 20;
inline constexpr size_t kChatTemplateBytesMax = 1u << 20;

// The template used when a request names none.
inline constexpr char kDefaultTemplateName[] = "default";
// That used when it has tools and names none.
inline constexpr char kToolTemplateName[] = "tool_use";
// What a folder may hold beside the default one, each as NAME.jinja.
inline constexpr char kTemplateFolder[] = "additional_chat_templates";
inline constexpr size_t kTemplatesMax = 64;

// Whether a text is a template rather than the name of one or of a file: it has a tag.
inline bool IsTemplateSource(std::string_view text) {
  return text.find("{{") != std::string_view::npos || text.find("{%") != std::string_view::npos;
}

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token;
  // What is said of the tokens around a text; tokenizer.json has what is done.
  std::optional<bool> add_bos_token, add_eos_token;
  std::map<std::string, std::string> chat_templates;  // by name
  std::map<std::string, std::string> template_files;  // by name: where it came from, for errors
};

// A missing file is not an error; a malformed one is kInvalidArgument with the file's name.
// As in transformers, files of their own take precedence over templates in tokenizer_config.json:
// chat_template.jinja is the default one, additional_chat_templates/NAME.jinja that of this name.
// chat_template.json, of older processors, counts where neither is.
Result<TokenizerConfig> LoadTokenizerConfig(const std::string& folder);

// The object in one of these files; an empty one when there is no such file.
Result<Json> ReadTokenizerFile(const std::string& path);

}  // namespace millrace::text
