// AnswerSplit: how the text of a chat's answer is split into reasoning, content and tool calls. A
// value; any thread. It is part of a stream's record, so that a restarted server splits the rest of
// the stream as before.
#pragma once

#include <string>

#include "base/json.h"
#include "text/answer_parser.h"
#include "text/tool_format.h"

namespace millrace::serve {

inline constexpr int kToolCallsMax = 128;  // of one answer

struct AnswerSplit {
  const text::ToolFormat* tools = nullptr;           // null: calls are not looked for
  const text::ReasoningFormat* reasoning = nullptr;  // null: there is none
  bool begins_in_reasoning = false;
  bool hide_reasoning = false;
  int calls_max = kToolCallsMax;
  std::string schemas;      // the request's tools, as JSON; only if their types are needed
  bool calls_only = false;  // the answer is constrained to calls
  int first_call = 0;       // the number of the first call, if the family numbers them

  bool any() const { return tools != nullptr || reasoning != nullptr; }
  text::AnswerParserOptions ParserOptions() const;
};

Json ToJson(const AnswerSplit& split);
// Throws Json::exception for JSON that ToJson does not make.
AnswerSplit SplitFromJson(const Json& json);

}  // namespace millrace::serve
