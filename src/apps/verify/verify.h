// What `millrace verify` decides: reads a request log, compares one answer with its line, and sums
// up. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/ids.h"

namespace millrace::apps {

struct LoggedLine {
  int number = 0;  // in the file, from 1
  std::string id, route, fingerprint, body;
  std::vector<TokenId> prompt;
  std::vector<std::vector<TokenId>> answers;  // tokens, by choice
};
// kInvalidArgument, with the line's number: not a line of a request log. A last line that was cut
// in the middle is left out.
Result<std::vector<LoggedLine>> ParseRequestLog(std::string_view text);

enum class Sameness {
  kSame,
  kDifferent,    // another token, or one more or less
  kOtherBits,    // different, and computed by workers of another numeric class
  kOtherPrompt,  // the conversation became other tokens: another template, tokenizer or date
  kFailed,       // no answer
};
struct Verdict {
  Sameness outcome = Sameness::kFailed;
  std::string detail;  // unless the same: where it differs, or the error
};
Verdict Compare(const LoggedLine& line, int status, std::string_view body);

struct VerifySummary {
  size_t same = 0, different = 0, other_bits = 0, other_prompt = 0, failed = 0, tokens = 0;
  std::vector<std::string> shown;  // of those that are not the same, the first ones

  size_t all() const { return same + different + other_bits + other_prompt + failed; }
  std::string ToText() const;
  Json ToJson() const;
  // kDataLoss unless all are the same.
  Status status() const;
};
VerifySummary Summarize(const std::vector<LoggedLine>& lines, const std::vector<Verdict>& verdicts,
                        size_t shown_max);

}  // namespace millrace::apps
