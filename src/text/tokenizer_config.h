// What a model folder says about its special tokens and chat templates: tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja, all optional. Plain data; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/status.h"

namespace millrace::text {

inline constexpr size_t kTokenizerConfigBytesMax = 16u << 20;
inline constexpr size_t kChatTemplateBytesMax = 1u << 20;

// The name of the template used when a request does not ask for another.
inline constexpr char kDefaultTemplateName[] = "default";

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token;
  std::map<std::string, std::string> chat_templates;  // by name
};

// Missing files are no error; malformed ones are kInvalidArgument with the file's name.
// chat_template.jinja wins over the template in tokenizer_config.json, as in transformers.
Result<TokenizerConfig> LoadTokenizerConfig(const std::string& folder);

}  // namespace millrace::text
