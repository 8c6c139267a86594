// SequenceText: converts the tokens of one sequence to the text that the client sees: incremental
// detokenizing, stop strings, min_tokens. Owned by a Choice; one thread at a time; refers to the
// parameters, which must outlive it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/sampling_params.h"
#include "serve/answer/answer_split.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace millrace::serve {

class SequenceText {
 public:
  // The marks by which `split` works are shown, also if they are special tokens.
  SequenceText(std::shared_ptr<const text::Tokenizer> tokenizer, const SamplingParams& params,
               std::span<const TokenId> prompt, const AnswerSplit& split = {});

  // Adds a token. Appends to `out` the text that can no longer be part of a stop string. REQUIRES:
  // not stopped.
  void Add(TokenId token, std::string& out);
  // Appends the text that was held back; for a sequence that ended without a stop string.
  void Finish(std::string& out);

  // The index in params.stop of the stop string that was found. No text after it is output.
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
