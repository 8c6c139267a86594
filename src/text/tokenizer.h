// Tokenizer: text to token ids and back, exactly as Hugging Face's tokenizers does with the same
// tokenizer.json.
//
// Immutable after Load; any thread. Streaming is the Detokenizer's job (detokenizer.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/ids.h"

struct MrtTokenizer;

namespace millrace::text {

inline constexpr size_t kTokenizerFileBytesMax = 256u << 20;
inline constexpr int kVocabMax = 1 << 21;
inline constexpr size_t kEncodeBytesMax = 64u << 20;

struct EncodeOptions {
  // Adds what the model's post-processor puts around a text: BOS, EOS.
  bool add_special_tokens = true;
  // Parses "<|im_end|>" in the text as that token. Off for text from a user; on for a rendered chat
  // template.
  bool parse_special = false;
  // The text comes from ChatTemplate::Render, which marks special tokens in user text so that they
  // stay plain text although parse_special is on.
  bool guarded = false;
};

// One entry of the vocabulary. Views into the tokenizer.
struct TokenInfo {
  bool known = false;     // false: the vocabulary has no such id, and it decodes to nothing
  bool special = false;   // hidden by skip_special
  bool byte = false;      // a byte token <0xNN>
  std::string_view raw;   // as stored in the vocabulary: "Ġhello", "▁hello", "<0xE2>"
  std::string_view text;  // the bytes it adds after the start of a text; may be part of a character
};

// How tokens become text, as far as a streaming decoder needs to know (rust/millrace_text.h).
enum class DecoderKind { kByteLevel, kByteFallback, kFirstDiffers, kWhole };

class Tokenizer {
 public:
  // Reads tokenizer.json, and the special tokens' names from the files beside it. Returns
  // kNotFound, kTooLarge, or kInvalidArgument with the cause.
  static Result<std::shared_ptr<const Tokenizer>> Load(const std::string& folder);
  static Result<std::shared_ptr<const Tokenizer>> FromJson(std::string_view tokenizer_json);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // kTooLarge beyond kEncodeBytesMax; kInvalidArgument for invalid UTF-8.
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;

  // Always valid UTF-8; ids outside the vocabulary decode to nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  TokenInfo Token(TokenId id) const;
  std::optional<TokenId> IdOf(std::string_view raw) const;
  // One more than the largest id. The model's own vocabulary may be larger (padding).
  int vocab_size() const { return vocab_size_; }

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unk() const { return unk_; }
  std::optional<TokenId> pad() const { return pad_; }
  // Every special token as written in text; used to guard user text.
  const std::vector<std::string>& special_tokens() const { return special_tokens_; }

  DecoderKind decoder_kind() const { return decoder_kind_; }
  // kByteFallback: spaces removed from the very start of a text.
  int strip_left() const { return strip_left_; }

 private:
  struct Deleter {
    void operator()(MrtTokenizer* handle) const;
  };

  explicit Tokenizer(MrtTokenizer* handle);

  std::unique_ptr<MrtTokenizer, Deleter> handle_;
  int vocab_size_ = 0;
  DecoderKind decoder_kind_ = DecoderKind::kWhole;
  int strip_left_ = 0;
  std::optional<TokenId> bos_, eos_, unk_, pad_;
  std::vector<std::string> special_tokens_;
};

}  // namespace millrace::text
