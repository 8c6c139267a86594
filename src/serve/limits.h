// Every bound on what one HTTP request may ask for, by name. The body's size and the headers' are
// net's; the ranges of sampling parameters are core's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::serve {

inline constexpr int kPromptsMax = 512;        // prompts of one /v1/completions body
inline constexpr int kSequencesMax = 1024;     // prompts x n
inline constexpr int kMessagesMax = 4096;      // of a chat
inline constexpr int kContentPartsMax = 4096;  // of a message
inline constexpr int kToolsMax = 128;
inline constexpr int kObjectKeysMax = 256;    // of any object inside messages and tools
inline constexpr size_t kNameBytesMax = 256;  // model, request_id, cache_salt, role
inline constexpr int64_t kGeneratedTokensMax = int64_t{1} << 22;  // prompts x n x max_tokens
// Log-probabilities that one request may make the server hold: positions x (1 + alternatives).
inline constexpr int64_t kLogprobEntriesMax = int64_t{1} << 19;

// A text of more bytes than this per token of the model's context cannot fit and is not tokenized.
inline constexpr size_t kBytesPerTokenMax = 256;

inline constexpr int kCompletionMaxTokensDefault = 16;  // OpenAI's, for /v1/completions only

}  // namespace millrace::serve
