// Tokenizer: text to token ids and back, exactly as Hugging Face's tokenizers does with the same
// tokenizer.json.
//
// Immutable after Load; any thread. Streaming is the Detokenizer's job (detokenizer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/ids.h"
#include "text/added_tokens.h"

struct MrtTokenizer;

namespace millrace::text {

inline constexpr size_t kTokenizerFileBytesMax = 256u << 20;
inline constexpr int kVocabMax = 1 << 21;
inline constexpr size_t kEncodeBytesMax = 64u << 20;

// The parts of a tokenizer.json, which is untrusted.
inline constexpr size_t kTokenBytesMax = 4096;              // real ones have up to 256
inline constexpr size_t kAddedTokensBytesMax = 8u << 20;    // of all together
inline constexpr size_t kTokenizerStepsMax = 256;           // of the normalizer, ...
inline constexpr size_t kTokenizerStepDepthMax = 16;        // Sequences in Sequences
inline constexpr size_t kTokenizerStepTextBytesMax = 1024;  // what a Replace or Prepend puts in
inline constexpr size_t kDecoderGrowthMax = 1024;
inline constexpr size_t kFramingTokensMax = 1024;
inline constexpr size_t kWordPieceCharsMax = 1000;
// A normalizer may make this many bytes of each byte of a text, and some more of the whole. Unicode
// makes up to 11 of one.
inline constexpr size_t kNormalizerGrowthMax = 16;
inline constexpr size_t kNormalizerBytesFree = 64u << 10;
// Of one search of a regex: far more than a search in 16 MiB of text needs, and about a second.
inline constexpr size_t kRegexRetriesMax = 100'000'000;

// Longer texts are encoded in parts of about this size.
inline constexpr size_t kEncodePartBytes = 64u << 10;

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

// What ends an encoding early.
struct EncodeBounds {
  size_t tokens_max = SIZE_MAX;  // no more are wanted
  bool keeps_end = false;        // if there are more: the last ones are wanted, else the first
  // A stretch of text that cannot be divided is encoded at once, with about 150 times its memory.
  size_t undivided_bytes_max = kEncodeBytesMax;
  std::function<bool()> stops;           // asked before each part: nobody wants the tokens any more
  size_t part_bytes = kEncodePartBytes;  // a text of more is encoded in parts
};

struct EncodedText {
  // With what the post-processor adds. Not `whole`: at least tokens_max of them are of the wanted
  // end of the text, and there are more.
  std::vector<TokenId> tokens;
  bool whole = true;
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
  // Reads tokenizer.json, and the added and special tokens from the files beside it. Returns
  // kNotFound, kTooLarge, or kInvalidArgument with the cause. Logs what the files disagree on.
  static Result<std::shared_ptr<const Tokenizer>> Load(const std::string& folder);
  // The text of tokenizer.json, and tokens that are added to it.
  static Result<std::shared_ptr<const Tokenizer>> FromJson(
      std::string_view tokenizer_json, const std::vector<AddedToken>& added = {});

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // kTooLarge beyond kEncodeBytesMax; kInvalidArgument for invalid UTF-8.
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;

  // The same tokens, in parts of the text, until there are enough. kTooLarge also for a stretch
  // that cannot be divided and is too long; kCancelled when told to stop.
  Result<EncodedText> EncodeWithin(std::string_view text, const EncodeOptions& options,
                                   const EncodeBounds& bounds) const;

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

  Result<std::vector<TokenId>> EncodePart(std::string_view part, uint32_t flags) const;
  // Of the text from `begin`, resp. up to `end`: its first, resp. last part.
  size_t PartEnd(std::string_view text, size_t begin, const EncodeBounds& bounds) const;
  size_t PartBegin(std::string_view text, size_t end, const EncodeBounds& bounds) const;

  std::unique_ptr<MrtTokenizer, Deleter> handle_;
  int vocab_size_ = 0;
  DecoderKind decoder_kind_ = DecoderKind::kWhole;
  int strip_left_ = 0;
  std::optional<TokenId> bos_, eos_, unk_, pad_;
  std::vector<std::string> special_tokens_;
};

}  // namespace millrace::text
