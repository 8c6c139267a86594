// The tokens that a model folder adds to those of tokenizer.json: `added_tokens_decoder` and the
// special tokens of tokenizer_config.json, and the older special_tokens_map.json and
// added_tokens.json. transformers' fast tokenizers take them in this order, and so does the
// Tokenizer. Plain data; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/ids.h"

namespace millrace::text {

struct AddedToken {
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
  // A file of the folder gives it this id. The id that it gets is that of tokenizer.json, or else
  // the next free one.
  std::optional<TokenId> stated_id;
  bool only_if_new = false;  // tokenizer.json's own flags for this text count
};

// A missing file is not an error; a malformed one is kInvalidArgument with the file's name.
Result<std::vector<AddedToken>> LoadAddedTokens(const std::string& folder);

// For the Rust library.
std::string ToJsonText(const std::vector<AddedToken>& tokens);

}  // namespace millrace::text
