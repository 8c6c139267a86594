// A grammar for the hash model: after each output, a third of the tokens are allowed, by the hash
// of the output. So a token shows whether the stage that sampled it knew all tokens before it.
// Values; any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/output_grammar.h"

namespace millrace::stage {

class HashGrammars : public GrammarSource {
 public:
  explicit HashGrammars(int vocab_size) : vocab_size_(vocab_size) {}

  std::unique_ptr<TokenMatcher> MatcherOf(const std::string& /*grammar*/) override {
    return std::make_unique<Matcher>(vocab_size_);
  }

 private:
  class Matcher : public TokenMatcher {
   public:
    explicit Matcher(int vocab_size) : vocab_size_(vocab_size) {}

    Result<std::span<const uint32_t>> Allowed(std::span<const TokenId> output) override {
      constexpr int kBits = 32;
      uint64_t hash = 0;
      for (const TokenId token : output) hash = HashCounter(hash, static_cast<uint64_t>(token));
      mask_.assign(static_cast<size_t>((vocab_size_ + kBits - 1) / kBits), 0);
      for (int token = static_cast<int>(hash % 3); token < vocab_size_; token += 3) {
        mask_[static_cast<size_t>(token / kBits)] |= uint32_t{1} << (token % kBits);
      }
      return std::span<const uint32_t>(mask_);
    }

    bool Takes(std::span<const TokenId> output, TokenId next, bool /*ends*/) override {
      return InMask(*Allowed(output), next);
    }

   private:
    const int vocab_size_;
    std::vector<uint32_t> mask_;
  };

  const int vocab_size_;
};

}  // namespace millrace::stage
