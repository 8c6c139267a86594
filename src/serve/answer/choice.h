// Choice: one sequence as its client sees it: text, log-probabilities and finish reason. Owned by a
// Generation; used by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "serve/answer/answer_split.h"
#include "serve/answer/response.h"
#include "serve/answer/sequence_text.h"
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
    std::string echo;             // precedes the generated text
    bool echo_reports = false;    // the prompt's log-probabilities belong to the echo
    bool hide_generated = false;  // the client asked for the echo only
    bool hide_logprobs = false;   // they only tell which answers are the likeliest
    int max_tokens = 0;           // of the sequence
    AnswerSplit split = {};
    bool token_ids = false;        // its parts have ids, the first one those of the prompt too
    bool tokens_as_ids = false;    // as ChoicePart
    bool keeps_tokens = false;     // for the request log
    std::string response_id = {};  // ids of tool calls follow from it
    text::CallIds call_ids = text::CallIds::kAny;
  };
  Choice(std::shared_ptr<const text::Tokenizer> tokenizer, const SamplingParams& params,
         std::span<const TokenId> prompt, Setup setup);

  // The workers with this fingerprint compute its tokens from now on.
  void SetFingerprint(const std::string& fingerprint) { part_.fingerprint = fingerprint; }
  // With Setup::echo_reports, nothing is output before this is called.
  void SetPromptReports(TokenReports reports);

  // Adds output of the sequence. Returns true if a stop string ended it here and the controller
  // must be told to stop generating.
  bool Apply(const RequestOutput& output);

  bool finished() const { return !finish_reason_.empty(); }
  const std::string& finish_reason() const { return finish_reason_; }
  int generated_tokens() const { return generated_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }  // with Setup::keeps_tokens
  double logprob() const { return logprob_; }  // of all its tokens, if they are known
  // Its place in the answer. REQUIRES: nothing has been taken.
  void SetIndex(int index) { part_.index = index; }
  int reasoning_tokens() const { return reasoning_tokens_; }
  bool HasOutput() const;
  // Returns everything new since the last call.
  ChoicePart Take();

  // When the last token arrived; set and read by Generation for the latency metrics.
  std::optional<Time> last_token_at;

 private:
  void Show(const std::string& text);
  void Add(const text::AnswerPieces& pieces);
  void AddReport(TokenId token, const PositionLogprobs* logprobs);
  // `cut`: the model did not end the answer itself.
  void Finish(std::string reason, Json stop_reason, bool cut);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  const SamplingParams& params_;
  Setup setup_;
  SequenceText text_;
  std::optional<text::AnswerParser> parser_;  // unset: all text is content
  ChoicePart part_;                           // what has not been taken yet
  std::string finish_reason_;
  bool waits_for_prompt_;
  int generated_ = 0, reasoning_tokens_ = 0;
  double logprob_ = 0;
  std::vector<TokenId> tokens_;
  int64_t text_offset_ = 0;  // characters before the next token
};

}  // namespace millrace::serve
