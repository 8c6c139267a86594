// SequenceText: from the tokens of one sequence to the text a client may see: incremental
// detokenizing, stop strings, min_tokens. One thread at a time; refers to the parameters.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/sampling_params.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace millrace::serve {

class SequenceText {
 public:
  SequenceText(std::shared_ptr<const text::Tokenizer> tokenizer, const SamplingParams& params,
               std::span<const TokenId> prompt);

  // Appends to `out` what the token adds and no stop string can take back. REQUIRES: not stopped.
  void Add(TokenId token, std::string& out);
  // The sequence has ended by itself: appends what was held back.
  void Finish(std::string& out);

  // Which of params.stop was found; nothing after it is shown.
  std::optional<size_t> stop() const { return stop_; }

 private:
  void Push(const std::string& text, std::string& out);

  const SamplingParams& params_;
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  int tokens_ = 0;
  std::optional<size_t> stop_;
};

}  // namespace millrace::serve
