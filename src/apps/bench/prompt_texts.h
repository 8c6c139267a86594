// PromptTexts: the prompts of a workload as texts, for APIs that take no token ids. A text has as
// many tokens as the prompt had ids, as far as the tokenizer allows.
//
// Immutable after Load; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/workload.h"
#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace::apps {

class PromptTexts {
 public:
  // `folder`: of a model. Only ids below `ids_max` are used, if it is given.
  static Result<PromptTexts> Load(const std::string& folder, std::optional<int> ids_max);

  // The number of tokens that are whole texts by themselves. A workload for Apply has its ids below
  // this number; they are counted within these tokens.
  int vocab_size() const { return static_cast<int>(tokens_.size()); }

  // Replaces each prompt's ids by a text. `special`: the server adds the tokens that begin a text,
  // so these are counted too. Prompts that begin with the same ids begin with the same text.
  Status Apply(uint64_t seed, bool special, std::vector<BenchRequest>& requests) const;

 private:
  PromptTexts() = default;
  Result<std::string> TextOf(const std::vector<TokenId>& prompt, uint64_t seed, bool special) const;

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::vector<TokenId> tokens_;
};

}  // namespace millrace::apps
