// The bounds of one HTTP request. net bounds the size of the body and the headers; core bounds the
// sampling parameters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::serve {

inline constexpr int kPromptsMax = 512;        // prompts of one /v1/completions body
inline constexpr int kSequencesMax = 1024;     // prompts x n
inline constexpr int kMessagesMax = 4096;      // of a chat
inline constexpr int kContentPartsMax = 4096;  // of a message
inline constexpr int kToolsMax = 128;
inline constexpr size_t kToolNameBytesMax = 128;
inline constexpr int kObjectKeysMax = 256;       // of any object inside messages, tools and schemas
inline constexpr size_t kNameBytesMax = 256;     // model, request_id, cache_salt, role
inline constexpr size_t kBadWordTextsMax = 256;  // each may be two token sequences
inline constexpr size_t kBadWordBytesMax = 256;
inline constexpr int64_t kGeneratedTokensMax = int64_t{1} << 22;  // prompts x n x max_tokens
// Log-probabilities that the server holds for one request: positions x (1 + alternatives).
inline constexpr int64_t kLogprobEntriesMax = int64_t{1} << 19;

// A text with more bytes than this per token of the model's context cannot fit: it is refused
// without tokenizing it.
inline constexpr size_t kBytesPerTokenMax = 256;

inline constexpr int kCompletionMaxTokensDefault = 16;  // OpenAI's, for /v1/completions only

}  // namespace millrace::serve
