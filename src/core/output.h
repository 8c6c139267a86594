// What the controller delivers to its caller: tokens as they are generated, or a vector, then why
// it ended. Pure data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/step_plan.h"
#include "core/time_account.h"
#include "core/token_run.h"

namespace millrace {

enum class FinishReason : uint8_t {
  kStop,    // EOS, a stop token, or a stop string
  kLength,  // max_tokens or the model's length
  kAbort,   // the client disconnected or cancelled
  kError,   // this request failed; RequestOutput::error says why
};
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "abort", "error"

// When things happened to a request, on the controller's clock. Unset: not yet.
struct RequestTimes {
  Time arrived;
  std::optional<Time> first_scheduled;
  std::optional<Time> last_scheduled;  // last left the waiting queue
  std::optional<Time> first_token;
  std::optional<Time> last_token;
  // After the first token: it waited for a place where it decodes, and its KV was on the way there.
  Duration held, transferred;
};

// What a request's time went into, after each other. Time before the first token that was lost with
// a pipeline is `queue`; after it, what is computed again is `decode`.
struct RequestPhases {
  Duration queue;     // from its arrival to being scheduled
  Duration prefill;   // from there to the first token
  Duration hold;      // with its KV elsewhere, until it had a place
  Duration transfer;  // of its KV to that place
  Duration decode;    // the rest until the last token
};
// nullopt: it has no token.
std::optional<RequestPhases> PhasesOf(const RequestTimes& times);

// Outputs of one sequence of a request. Tokens arrive in order, each exactly once.
struct RequestOutput {
  RequestId request;
  int index = 0;                           // which of the n sequences
  TokenRun tokens;                         // new ones; an EOS or stop token is the last
  std::vector<PositionLogprobs> logprobs;  // one per token, if asked
  std::vector<PositionLogprobs>
      prompt_logprobs;                 // of prompt tokens 1 .. len-1, with the first token
  std::vector<float> pooled;           // the vector of a request for one, with its finish
  std::optional<FinishReason> finish;  // set in the last output of this sequence
  std::optional<TokenId> stop_token;   // which token (EOS included) stopped it, when one did
  int cached_prompt_tokens = 0;        // found in the prefix cache
  // Of the workers that compute these tokens and those that follow, set where that changes: in the
  // request's first output with tokens, and again if another class continues it. Empty also if it
  // is not known.
  std::string fingerprint;
  // Set in the last output of the request. Without `finish`, the request has stopped after its
  // prompt and continues elsewhere.
  std::optional<RequestTimes> times;
  // What its time went into, until then. Set with `times`.
  std::shared_ptr<const TimeAccount> account;
  Status error;  // with kError

  // Whether it has what was asked for, or some of it.
  bool yields() const { return !tokens.empty() || !pooled.empty(); }
};

}  // namespace millrace
