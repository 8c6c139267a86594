// Detokenizer: the text of one sequence, token by token, for streaming.
//
// Every piece is valid UTF-8, and all pieces together, with Flush, are exactly Tokenizer::Decode of
// all tokens. Text is held back only while later tokens could change it: the bytes of an unfinished
// character, and a run of byte tokens (<0xE2>), which Hugging Face decodes as a whole.
//
// With a prompt, the output continues the prompt's text: a leading space stays, a character that
// the prompt left unfinished is emitted whole once completed, and nothing of the prompt is
// repeated.
//
// One per sequence, used by one thread at a time; a token costs O(1) amortised.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace millrace::text {

class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true,
                       std::span<const TokenId> prompt = {});

  // These special tokens, by their text, are not skipped. Not with DecoderKind::kWhole.
  void Show(std::vector<std::string_view> special) { shown_specials_ = std::move(special); }

  // The text that `id` completes; often empty. An id outside the vocabulary adds nothing.
  std::string Push(TokenId id);
  // Ends the sequence: returns the held-back text, with U+FFFD for incomplete characters.
  std::string Flush();

 private:
  bool Skips(const TokenInfo& token) const;
  void SeedByteLevel(std::span<const TokenId> prompt);
  void SeedByteFallback(std::span<const TokenId> prompt);
  void SeedWindow(std::span<const TokenId> prompt);
  void EmitRun(std::string& out);
  void Emit(std::string_view text, std::string& out);
  void PushByteFallback(const TokenInfo& token, std::string& out);
  void PushWindow(TokenId id, std::string& out);
  void EmitWindow(bool at_end, std::string& out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::vector<std::string_view> shown_specials_;
  bool begun_ = false;  // kFirstDiffers: a token has been decoded

  Utf8Stream utf8_;             // kByteLevel
  std::string run_;             // kByteFallback: bytes of the current run of byte tokens
  size_t run_from_prompt_ = 0;  // how many of them the prompt has already shown
  int strip_left_ = 0;  // kByteFallback: spaces still to be stripped from the start of the text

  std::vector<TokenId> window_;  // kWhole: tokens [0, shown_) are context, the rest is undecoded
  size_t shown_ = 0;
};

}  // namespace millrace::text
