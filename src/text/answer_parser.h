// AnswerParser: splits the text of an answer into reasoning, content and tool calls, as it comes.
// The pieces do not depend on how the text is cut: all deltas of a stream together are what the
// whole text gives. Text that only looks like a call is content, byte for byte. The marks of calls
// are in no content otherwise, not even an end without a beginning.
//
// One per sequence, one thread at a time. Refers to the formats, which are static.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_syntax.h"
#include "text/tool_format.h"
#include "text/whole_calls.h"

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
  bool calls_only = false;  // the answer is constrained to calls
  OrderedJson schemas;      // the request's tools
  int calls_max = 128;      // what comes after them is dropped
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerParserOptions options);

  void Push(std::string_view text, AnswerPieces& out);
  // The answer has ended: what was held back is decided. `cut`: not by the model. A call that is
  // cut off after its name keeps what it has, and one that is cut off before it is dropped.
  void Finish(AnswerPieces& out, bool cut = false);
  // Whether there are calls, and the arguments of each are a JSON object.
  bool has_whole_calls() const { return calls_ > 0 && !broken_; }
  bool in_reasoning() const { return at_ == At::kReasoning; }

 private:
  enum class At {
    kStart,      // nothing but white space has come
    kReasoning,  // after its begin marker
    kText,       // content
    kOpened,     // after what begins calls
    kObject,     // in a {"name": ..., "arguments": ...}
    kValue,      // in arguments whose name is known
    kWhole,      // in calls of a syntax that is parsed as a whole
    kBroken,     // in the rest of a call whose arguments are no JSON
    kAfterCall,
  };
  enum class Mark { kBegin, kBareBegin, kEnd, kReasoningBegin, kReasoningEnd };
  struct Found {
    size_t at;
    std::string_view token;
    Mark mark;
  };

  // Takes something from the front of buffer_; false: more text is needed.
  bool Step(AnswerPieces& out);
  bool StepStart();
  bool StepStartOfCalls();
  bool StepReasoning(AnswerPieces& out);
  bool StepText(AnswerPieces& out);
  bool TakeMark(const Found& found, AnswerPieces& out);
  bool StepOpened(AnswerPieces& out);
  bool SkipToCall();
  bool StepName(AnswerPieces& out);
  bool BeginNamed(std::string name, std::string_view value, AnswerPieces& out);
  bool StepObject(AnswerPieces& out);
  bool StepValue(AnswerPieces& out);
  bool StepWhole(AnswerPieces& out);
  bool StepBroken(AnswerPieces& out);
  bool StepAfterCall();
  void FinishOpened(AnswerPieces& out, bool cut);
  void FinishWhole(AnswerPieces& out, bool cut);

  std::optional<Found> FindMark() const;
  bool IsWrittenAbout(const Found& found) const;
  bool IsKnownTool(const std::string& name) const;

  // `text` has been taken; `by_mark`: it is, or a mark follows it.
  void Open(std::string_view text, bool by_mark);
  void Skip(size_t size);
  void DropOpening();
  // What follows an opening is no call: all of it is content. `ends`: so is its end.
  void NoCall(std::string_view text, bool ends, AnswerPieces& out);
  void AddContent(std::string_view text, AnswerPieces& out);
  void Begin(std::string name, AnswerPieces& out);
  void AddArguments(std::string_view text, AnswerPieces& out);
  void EndCalls();
  void Break();  // the newest call's arguments are no JSON object
  // Calls of the format are only looked for at the beginning of the answer, and after kPythonTag.
  bool unmarked() const { return options_.tools->section_begin.empty(); }
  bool opened_bare() const;
  bool opened_only_marks() const;
  bool one_call_per_section() const {
    return options_.tools->call_begin.empty() && !options_.tools->call_end.empty();
  }
  bool MayBegin(std::string_view token) const;  // buffer_ is a part of the token's beginning

  const AnswerParserOptions options_;
  std::vector<std::pair<std::string_view, Mark>> marks_;  // that are looked for in text
  At at_ = At::kStart;
  bool at_end_ = false;                // no more text will come
  std::string buffer_;                 // not yet taken
  std::string spaces_;                 // of content, held back: calls may follow them
  char last_ = 0;                      // of the content
  std::optional<std::string> opened_;  // what has been taken since an opening without a call
  bool by_mark_ = false;               // so it was opened
  bool trim_ = false;                  // white space that follows is not of the content
  bool keeps_ends_ = false;            // the next end belongs to what was no call
  bool reasoning_in_text_ = false;     // its begin marker is in the content
  bool reasoning_begun_ = false;
  bool reasoning_over_ = false;  // no more of it may begin: its end came without a beginning
  bool fenced_ = false;          // a fence has been opened within a call
  int calls_ = 0;
  bool broken_ = false;  // the arguments of some call are no JSON object

  CallObject object_;                // kObject
  std::string raw_;                  // of the object so far, if its call has not begun
  JsonScanner value_;                // kValue
  std::optional<WholeCalls> whole_;  // kWhole; nullopt: calls are not looked for
};

}  // namespace millrace::text
