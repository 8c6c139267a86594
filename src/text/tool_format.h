// How models of a family write tool calls and reasoning into their text. Tables; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

enum class CallSyntax {
  kJson,           // {"name": ..., "arguments": {...}}, one after another or as a list
  kNameThenJson,   // a name, then the arguments as JSON
  kParameterTags,  // <function=name><parameter=key>value</parameter></function>
  kKeyValueTags,   // name<arg_key>key</arg_key><arg_value>value</arg_value>
  kPython,         // [name(key=value, ...), ...]
};

// What a family's ids of calls look like. Templates refuse other ids, or models were not trained on
// them.
enum class CallIds {
  kAny,        // call_ and 24 hexadecimal digits
  kNineChars,  // Mistral: nine letters and digits
  kNumbered,   // Kimi: functions.NAME:N, where N counts the calls of the conversation
};

struct ToolFormat {
  std::string_view name;  // as for --tool-call-parser
  CallSyntax syntax = CallSyntax::kJson;
  CallIds ids = CallIds::kAny;
  // What begins calls within text. Empty: only the beginning of the answer can be calls, where it
  // has the first character of their syntax.
  std::string_view section_begin = {};
  std::string_view call_begin = {};  // of each call in the section; empty: none
  std::string_view name_begin = {};  // kNameThenJson: what may precede the name
  std::string_view name_end = {};    // what ends a name that the arguments follow
  std::string_view call_end = {}, section_end = {};
  // What models also write: the beginning of a call without that of its section, which is not taken
  // away, and an end that has no meaning.
  std::string_view bare_begin = {}, stray_end = {};
  std::string_view arguments_key = "arguments";
  std::string_view separator = {};  // between calls, for grammars
  std::string_view marker = {};     // in chat templates of the family
};

std::span<const ToolFormat> ToolFormats();
// Null: there is none of this name.
const ToolFormat* FindToolFormat(std::string_view name);
// By the source of a chat template; null: it has no known way to write calls.
const ToolFormat* ToolFormatOf(std::string_view chat_template);
// The ids that a chat template demands, or those of the format if it demands none; `format`: may be
// null.
CallIds CallIdsOf(std::string_view chat_template, const ToolFormat* format);
// A list of objects, as the whole answer: any model writes it if its output is constrained.
const ToolFormat& PlainJsonFormat();

// May precede calls of llama3_json.
inline constexpr std::string_view kPythonTag = "<|python_tag|>";

// Precedes the id of a call of Mistral's.
inline constexpr std::string_view kCallIdTag = "[CALL_ID]";

struct ReasoningFormat {
  std::string_view name;  // as for --reasoning-parser
  std::string_view begin, end;
};

std::span<const ReasoningFormat> ReasoningFormats();
const ReasoningFormat* FindReasoningFormat(std::string_view name);
// By the source of a chat template; null: it has no reasoning.
const ReasoningFormat* ReasoningFormatOf(std::string_view chat_template);
// The texts that a parser of these formats must see, even if they are special tokens.
std::vector<std::string_view> MarkersOf(const ToolFormat* tools, const ReasoningFormat* reasoning);
// Whether an answer to this prompt begins within reasoning, because the template opened it.
bool BeginsInReasoning(const ReasoningFormat& format, std::string_view prompt);

}  // namespace millrace::text
