// AnswerPrinter: an answer of a chat as it comes, for people and for scripts. Reasoning is dim on a
// terminal, and elsewhere between the lines "<think>" and "</think>". Owned by one answer; one
// thread at a time.
#pragma once

#include <functional>
#include <string_view>

#include "base/json.h"

namespace millrace::apps {

struct AnswerStyle {
  bool reasoning = true;  // false: it is left out
  bool dim = false;       // escape sequences
};

class AnswerPrinter {
 public:
  using Write = std::function<void(std::string_view)>;
  AnswerPrinter(AnswerStyle style, Write write) : style_(style), write_(std::move(write)) {}

  // The "delta" of an event of /v1/chat/completions.
  void Delta(const Json& delta);
  // Ends the answer's last line.
  void End();

 private:
  enum class Part { kNothing, kReasoning, kContent, kCalls };
  void Enter(Part part);
  void Calls(const Json& calls);
  void Put(std::string_view text);

  const AnswerStyle style_;
  const Write write_;
  Part part_ = Part::kNothing;
  bool at_line_begin_ = true;
};

}  // namespace millrace::apps
