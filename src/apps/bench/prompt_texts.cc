#include "apps/bench/prompt_texts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/rng.h"
#include "text/utf8.h"

namespace millrace::apps {
namespace {

constexpr int kTriesMax = 16;  // of decoding and encoding again

}  // namespace

Result<PromptTexts> PromptTexts::Load(const std::string& folder, std::optional<int> ids_max) {
  auto tokenizer = text::Tokenizer::Load(folder);
  if (!tokenizer.ok()) return tokenizer.status().WithContext("--tokenizer");
  PromptTexts texts;
  texts.tokenizer_ = std::move(*tokenizer);
  const int end = std::min(ids_max.value_or(text::kVocabMax), texts.tokenizer_->vocab_size());
  for (TokenId id = 0; id < end; ++id) {
    const text::TokenInfo token = texts.tokenizer_->Token(id);
    if (token.known && !token.special && !token.byte && !token.text.empty() &&
        text::IsValidUtf8(token.text)) {
      texts.tokens_.push_back(id);
    }
  }
  if (texts.tokens_.empty()) {
    return InvalidArgument(
        fmt::format("--tokenizer {}: none of its first {} tokens is a text by itself; raise "
                    "--random-vocab-size",
                    Printable(folder), end));
  }
  return texts;
}

// Neighbours may merge when the text is encoded, so it is encoded and changed at its end until the
// number of tokens is right.
Result<std::string> PromptTexts::TextOf(const std::vector<TokenId>& prompt, uint64_t seed,
                                        bool special) const {
  const text::EncodeOptions encoding{.add_special_tokens = special};
  MR_ASSIGN_OR_RETURN(const auto around, tokenizer_->Encode("", encoding));
  const size_t wanted = std::max<size_t>(1, prompt.size() - std::min(prompt.size(), around.size()));
  std::vector<TokenId> ids;
  for (size_t i = 0; i < wanted; ++i) ids.push_back(tokens_[static_cast<size_t>(prompt[i])]);
  Rng more(seed);
  std::string text = tokenizer_->Decode(ids, true);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    MR_ASSIGN_OR_RETURN(ids, tokenizer_->Encode(text, {.add_special_tokens = false}));
    if (ids.size() == wanted) break;
    ids.resize(std::min(ids.size(), wanted));
    while (ids.size() < wanted) {
      ids.push_back(tokens_[static_cast<size_t>(more.Between(0, vocab_size() - 1))]);
    }
    text = tokenizer_->Decode(ids, true);
  }
  return text;
}

Status PromptTexts::Apply(uint64_t seed, bool special, std::vector<BenchRequest>& requests) const {
  for (size_t i = 0; i < requests.size(); ++i) {
    MR_ASSIGN_OR_RETURN(auto text, TextOf(requests[i].prompt, HashCounter(seed, i), special));
    requests[i].prompt_text = std::move(text);
    requests[i].prompt.clear();
  }
  return OkStatus();
}

}  // namespace millrace::apps
