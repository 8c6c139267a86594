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
// Strings, lists and objects of one body: each takes far more memory than its few bytes of text.
inline constexpr size_t kBodyPartsMax = 1 << 20;
inline constexpr size_t kDetokenizedBytesMax = 64 << 20;  // text of one answer of /detokenize
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
// A longer text is tokenized in parts, until there are more tokens than fit or than are kept. A
// stretch without a place to divide it, such as a word of a megabyte, must be tokenized at once: it
// may have this many bytes per token of the model's context, or the minimum.
inline constexpr size_t kUndividedBytesPerToken = 16;
inline constexpr size_t kUndividedBytesMin = 1 << 20;
// What routes that only count or show tokens make of one text: this many times the model's context,
// or the minimum.
inline constexpr int kShownContextsMax = 4;
inline constexpr int kShownTokensMin = 1 << 17;

// Bodies up to the first size are handled on the I/O thread, in about a millisecond. Larger ones
// have a thread for each class of size (body_pool.h), the last one for all that is larger. The
// limits are of what waits for one class, and of what waits for the disk.
inline constexpr size_t kInlineBodyBytesMax = 16 << 10;
inline constexpr size_t kBodyClassBytes[] = {128 << 10, 1 << 20, 16 << 20};
inline constexpr size_t kBodiesWaitingMax = 1024;
inline constexpr size_t kBodyBytesWaitingMax = 128 << 20;

inline constexpr int kCompletionMaxTokensDefault = 16;  // OpenAI's, for /v1/completions only

}  // namespace millrace::serve
