#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::text {
namespace {

// kWhole: tokens of context before the undecoded ones, and the most tokens that are held back while
// the text ends in U+FFFD.
constexpr size_t kContextTokens = 6;
constexpr size_t kUndecidedTokensMax = 16;

}  // namespace

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                         std::span<const TokenId> prompt)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {
  MR_CHECK(tokenizer_ != nullptr);
  strip_left_ = tokenizer_->strip_left();
  switch (tokenizer_->decoder_kind()) {
    case DecoderKind::kByteLevel: SeedByteLevel(prompt); break;
    case DecoderKind::kByteFallback: SeedByteFallback(prompt); break;
    case DecoderKind::kFirstDiffers:
      begun_ = std::any_of(prompt.begin(), prompt.end(),
                           [&](TokenId id) { return !Skips(tokenizer_->Token(id)); });
      break;
    case DecoderKind::kWhole: SeedWindow(prompt); break;
  }
}

bool Detokenizer::Skips(const TokenInfo& token) const {
  return !token.known || (skip_special_ && token.special &&
                          std::ranges::find(shown_specials_, token.raw) == shown_specials_.end());
}

// An unfinished character is within the last three bytes, whatever precedes them.
void Detokenizer::SeedByteLevel(std::span<const TokenId> prompt) {
  std::string tail;
  for (size_t i = prompt.size(); i > 0 && tail.size() < 3; --i) {
    const TokenInfo token = tokenizer_->Token(prompt[i - 1]);
    if (!Skips(token)) tail.insert(0, token.text);
  }
  Utf8Stream stream;
  std::string shown;
  stream.Push(tail, shown);
  utf8_.Adopt(stream.pending());
}

void Detokenizer::SeedByteFallback(std::span<const TokenId> prompt) {
  // From the front, until the leading spaces are stripped.
  std::string shown;
  for (size_t i = 0; i < prompt.size() && strip_left_ > 0; ++i) {
    const TokenInfo token = tokenizer_->Token(prompt[i]);
    if (!Skips(token)) PushByteFallback(token, shown);
  }
  EmitRun(shown);
  // From the back: the run that ends the prompt. Only its unfinished end is kept.
  std::string run;
  for (size_t i = prompt.size(); i > 0; --i) {
    const TokenInfo token = tokenizer_->Token(prompt[i - 1]);
    if (Skips(token)) continue;
    if (!token.byte) break;
    run += token.text;
  }
  std::reverse(run.begin(), run.end());
  Utf8Stream stream;
  stream.Push(run, shown);
  run_ = stream.pending();
  run_from_prompt_ = run_.size();
}

void Detokenizer::SeedWindow(std::span<const TokenId> prompt) {
  for (size_t i = prompt.size(); i > 0 && window_.size() < kContextTokens; --i) {
    if (!Skips(tokenizer_->Token(prompt[i - 1]))) window_.push_back(prompt[i - 1]);
  }
  std::reverse(window_.begin(), window_.end());
  shown_ = window_.size();
}

// Strips leading spaces at the start of the text.
void Detokenizer::Emit(std::string_view text, std::string& out) {
  while (strip_left_ > 0 && !text.empty()) {
    if (text.front() == ' ') {
      text.remove_prefix(1);
      --strip_left_;
    } else {
      strip_left_ = 0;
    }
  }
  out += text;
}

// A run is text if all of it is valid; otherwise each of its bytes becomes U+FFFD, as in Hugging
// Face.
void Detokenizer::EmitRun(std::string& out) {
  if (IsValidUtf8(run_)) {
    Emit(run_, out);
  } else {
    for (size_t i = run_from_prompt_; i < run_.size(); ++i) Emit(kReplacementCharacter, out);
  }
  run_.clear();
  run_from_prompt_ = 0;
}

void Detokenizer::PushByteFallback(const TokenInfo& token, std::string& out) {
  if (token.byte) {
    run_ += token.text;
  } else {
    EmitRun(out);
    Emit(token.text, out);
  }
}

// Decodes the context alone and then with the new tokens; the difference is new text.
void Detokenizer::EmitWindow(bool at_end, std::string& out) {
  const std::span<const TokenId> all(window_);
  const std::string before = tokenizer_->Decode(all.first(shown_), false);
  const std::string after = tokenizer_->Decode(all, false);
  const bool undecided =
      after.ends_with(kReplacementCharacter) && window_.size() - shown_ < kUndecidedTokensMax;
  if (!at_end && (undecided || !after.starts_with(before))) return;
  if (after.size() > before.size()) out += after.substr(before.size());
  if (window_.size() > kContextTokens) {
    window_.erase(window_.begin(), window_.end() - kContextTokens);
  }
  shown_ = window_.size();
}

void Detokenizer::PushWindow(TokenId id, std::string& out) {
  window_.push_back(id);
  EmitWindow(/*at_end=*/false, out);
}

std::string Detokenizer::Push(TokenId id) {
  const TokenInfo token = tokenizer_->Token(id);
  std::string out;
  if (Skips(token)) return out;
  switch (tokenizer_->decoder_kind()) {
    case DecoderKind::kByteLevel: utf8_.Push(token.text, out); break;
    case DecoderKind::kByteFallback: PushByteFallback(token, out); break;
    case DecoderKind::kFirstDiffers:
      if (std::exchange(begun_, true)) {
        out = token.text;
      } else {
        out = tokenizer_->Decode({&id, 1}, skip_special_);
      }
      break;
    case DecoderKind::kWhole: PushWindow(id, out); break;
  }
  return out;
}

std::string Detokenizer::Flush() {
  std::string out;
  utf8_.Flush(out);
  EmitRun(out);
  if (window_.size() > shown_) EmitWindow(/*at_end=*/true, out);
  return out;
}

}  // namespace millrace::text
