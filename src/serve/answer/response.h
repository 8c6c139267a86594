// The JSON bodies of completions: OpenAI's objects with vLLM's extra fields. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "core/ids.h"
#include "core/output.h"

namespace millrace::serve {

struct TokenAlternative {
  TokenId id = 0;
  std::string bytes;  // of this token alone; may be part of a character
  float logprob = 0;
  int rank = 0;
};

// One position with its log-probabilities.
struct TokenReport {
  TokenAlternative chosen;
  bool has_logprob = true;            // false for the first token of a prompt: nothing precedes it
  std::vector<TokenAlternative> top;  // most likely first
  int64_t text_offset = 0;            // in characters
};

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the completion
};

struct ResponseHead {
  std::string id;
  std::string model;
  int64_t created = 0;  // Unix seconds
};

// A part of a tool call; the first one has its id and name.
struct CallPart {
  int index = 0;
  std::string id, name;
  std::string arguments;
};

// The content of one chunk or choice: a part of one sequence.
struct ChoicePart {
  int index = 0;
  std::string text;
  std::string reasoning;
  std::vector<CallPart> calls;
  bool has_logprobs = false;
  std::vector<TokenReport> logprobs;
  std::string finish_reason;  // empty: null
  std::string fingerprint;    // RequestOutput::fingerprint of its newest token; empty: null
  Json stop_reason;           // the stop string, the stop token's id, or null
  Json prompt_logprobs;       // null unless requested
  // Unset unless requested.
  std::optional<std::vector<TokenId>> token_ids;
  std::optional<std::vector<TokenId>> prompt_token_ids;  // in the first part of a sequence
  bool tokens_as_ids = false;                            // in its log-probabilities

  // Its first call is the rest of one that is open: it precedes the text.
  bool ContinuesCall() const { return !calls.empty() && calls.front().name.empty(); }
};

// A token as text: its bytes, or OpenAI's form "bytes:\xe2\x96" if they are not valid UTF-8.
std::string TokenText(std::string_view bytes);

// The number of code points in `bytes`. Counts the bytes that begin one, so that the counts of a
// text's pieces add up to the count of the text.
int64_t CountCharacters(std::string_view bytes);

Json UsageJson(const UsageCounts& usage);

// What the time of an answer went into.
struct AnswerTimes {
  Duration ttft, e2e;  // as the front end saw them
  RequestPhases phases;
};
Json MetricsJson(const AnswerTimes& times);
Json PhasesJson(const RequestPhases& phases);
// `as_ids`: tokens are "token_id:5", in vLLM's way.
Json CompletionLogprobs(std::span<const TokenReport> tokens, bool as_ids = false);
Json ChatLogprobs(std::span<const TokenReport> tokens, bool as_ids = false);
// vLLM's: null for the first token, then {"ID": {logprob, rank, decoded_token}} per token.
Json PromptLogprobs(std::span<const TokenReport> tokens);

Json CompletionChoice(const ChoicePart& part);
Json ChatChoice(const ChoicePart& part);  // {"message": ...}
Json ChatDelta(const ChoicePart& part);   // {"delta": {"content": ...}}
Json ChatRoleDelta(int index);            // {"delta": {"role": "assistant", "content": ""}}

// {"id", "object", "created", "model", "system_fingerprint", "choices"}. `fingerprint`: "": null.
Json Envelope(const ResponseHead& head, const std::string& fingerprint, const char* object,
              Json choices);

// Server-sent events.
void AppendEvent(const Json& data, std::string& out);
// A comment, which clients skip: it keeps a silent stream's connection open in proxies.
inline constexpr std::string_view kPing = ": ping\n\n";
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";
// No other event begins like this.
inline constexpr std::string_view kErrorEventBegin = "data: {\"error\":";

}  // namespace millrace::serve
