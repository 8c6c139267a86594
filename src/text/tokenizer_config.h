// The special tokens and chat templates of a model folder: tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja, all optional. Plain data; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/status.h"

namespace millrace::text {

inline constexpr size_t kTokenizerConfigBytesMax = 16u << 20;
inline constexpr size_t kChatTemplateBytesMax = 1u << 20;

// The template used when a request names none.
inline constexpr char kDefaultTemplateName[] = "default";

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token;
  std::map<std::string, std::string> chat_templates;  // by name
  std::map<std::string, std::string> template_files;  // by name: where it came from, for errors
};

// A missing file is not an error; a malformed one is kInvalidArgument with the file's name.
// chat_template.jinja takes precedence over the template in tokenizer_config.json, as in
// transformers.
Result<TokenizerConfig> LoadTokenizerConfig(const std::string& folder);

}  // namespace millrace::text
