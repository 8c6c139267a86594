// Choice: one sequence on its way to the client: its text, its log-probabilities, why it ended.
// Driven by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "serve/response.h"
#include "serve/sequence_text.h"
#include "text/tokenizer.h"

namespace millrace::serve {

using TokenReports = std::shared_ptr<const std::vector<TokenReport>>;

// The tokens of a prompt with their log-probabilities: `logprobs` holds tokens 1 .. size-1. With
// `hide_special` the texts of special tokens (BOS) are empty, so that the texts add up to the echo.
TokenReports PromptReports(const text::Tokenizer& tokenizer, const std::vector<TokenId>& prompt,
                           const std::vector<PositionLogprobs>& logprobs, bool hide_special);

class Choice {
 public:
  struct Setup {
    int index = 0;
    std::string echo;             // shown before the generated text
    bool echo_reports = false;    // the prompt's log-probabilities belong to the echo
    bool hide_generated = false;  // echo alone was asked for
  };
  Choice(std::shared_ptr<const text::Tokenizer> tokenizer, const SamplingParams& params,
         std::span<const TokenId> prompt, Setup setup);

  // REQUIRED before anything is shown when Setup::echo_reports is set.
  void SetPromptReports(TokenReports reports);

  // Takes in the output of the sequence. True when a stop string ended it here although the engine
  // would go on.
  bool Apply(const RequestOutput& output);

  bool finished() const { return !finish_reason_.empty(); }
  const std::string& finish_reason() const { return finish_reason_; }
  int generated_tokens() const { return generated_; }
  bool HasOutput() const;
  // Everything new since the last call.
  ChoicePart Take();

  // When the last token arrived; the front end's own bookkeeping for latencies.
  std::optional<Time> last_token_at;

 private:
  void AddReport(TokenId token, const PositionLogprobs* logprobs);
  void Finish(std::string reason, Json stop_reason);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  const SamplingParams& params_;
  Setup setup_;
  SequenceText text_;
  ChoicePart part_;  // what has not been taken yet
  std::string finish_reason_;
  bool waits_for_prompt_;
  int generated_ = 0;
  int64_t text_offset_ = 0;  // characters before the next token
};

}  // namespace millrace::serve
