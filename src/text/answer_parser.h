// AnswerParser: splits the text of an answer into reasoning, content and tool calls, as it comes.
// The pieces do not depend on how the text is cut: all deltas of a stream together are what the
// whole text gives. Text that only looks like a call is content.
//
// One per sequence, one thread at a time. Refers to the formats, which are static.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/call_syntax.h"
#include "text/tool_format.h"

namespace millrace::text {

// A part of a call. The first one has its name; the arguments of all of them are the whole.
struct ToolCallDelta {
  int index = 0;
  std::string name;  // empty: not the first
  std::string arguments;
};

struct AnswerPieces {
  std::string reasoning, content;
  std::vector<ToolCallDelta> calls;  // ascending; one per call and Push
};

struct AnswerParserOptions {
  const ToolFormat* tools = nullptr;           // null: calls are not looked for
  const ReasoningFormat* reasoning = nullptr;  // null: there is none
  bool begins_in_reasoning = false;
  Json schemas;         // the request's tools
  int calls_max = 128;  // what comes after them is dropped
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerParserOptions options);

  void Push(std::string_view text, AnswerPieces& out);
  // The answer has ended: what was held back is decided.
  void Finish(AnswerPieces& out);
  int calls() const { return calls_; }
  bool in_reasoning() const { return at_ == At::kReasoning; }

 private:
  enum class At {
    kStart,      // nothing but white space has come
    kReasoning,  // after its begin marker
    kText,       // content
    kCalls,      // between calls
    kObject,     // in a {"name": ..., "arguments": ...}
    kValue,      // in arguments whose name is known
    kWhole,      // in calls of a syntax that is parsed as a whole
  };

  // Takes something from the front of buffer_; false: more text is needed.
  bool Step(AnswerPieces& out);
  bool StepStart();
  bool StepStartOfCalls();
  bool StepReasoning(AnswerPieces& out);
  bool StepText(AnswerPieces& out);
  bool StepCalls(AnswerPieces& out);
  bool StepCallsNamed(AnswerPieces& out);
  bool StepObject(AnswerPieces& out);
  bool StepValue(AnswerPieces& out);
  bool StepWhole(AnswerPieces& out);
  std::optional<size_t> WholeEnd() const;

  bool SkipTokens();
  void Skip(size_t size);
  void NoCall(std::string_view text, AnswerPieces& out);
  void AddContent(std::string_view text, AnswerPieces& out);
  void Begin(std::string name, AnswerPieces& out);
  void AddArguments(std::string_view text, AnswerPieces& out);
  void AddWhole(std::string_view text, AnswerPieces& out);
  std::string_view Opener() const;
  bool MayBegin(std::string_view token) const;  // buffer_ is a part of the token's beginning

  const AnswerParserOptions options_;
  At at_ = At::kStart;
  bool at_end_ = false;  // no more text will come
  std::string buffer_;   // not yet taken
  std::string spaces_;   // of content, held back: calls may follow them
  std::string opened_;   // what has been taken since an opening, if no call has followed
  bool reasoning_begun_ = false;
  int calls_ = 0;

  CallObject object_;   // kObject
  std::string raw_;     // of the object so far
  bool named_ = false;  // the object's call has begun
  JsonScanner value_;   // kValue
  bool value_begun_ = false;
};

}  // namespace millrace::text
