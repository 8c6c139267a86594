// The syntaxes of single tool calls. Values; one thread each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_scanner.h"
#include "text/json_text.h"

namespace millrace::text {

inline constexpr size_t kCallNameBytesMax = 512;

// Whether the text may be the name of a call that is written without quotes.
bool IsBareName(std::string_view name);

// One whole call.
struct ToolCall {
  std::string name;
  std::string arguments;  // JSON of an object
};

// Follows {"name": ..., "arguments": ...} character by character, and returns the arguments as they
// come. "parameters" is a name for the arguments, too.
class CallObject {
 public:
  // As of JsonScanner; appends to `arguments` once the call has begun. kBad: this is no call, or
  // not the rest of one.
  JsonScanner::Step Take(char c, std::string& arguments);
  // The name is known, and the arguments begin as an object does.
  bool begun() const { return begun_; }
  const std::string& name() const { return *name_; }  // REQUIRES: begun
  bool has_arguments() const { return arguments_ != Arguments::kNone; }
  bool arguments_whole() const { return whole_; }
  std::string Held() const { return whole_ ? "" : scanner_.Held(); }

 private:
  enum class At { kBegin, kKey, kInKey, kColon, kValue, kAfterValue };
  enum class Arguments { kNone, kObject, kQuoted, kNull };
  JsonScanner::Step TakeInKey(char c);
  JsonScanner::Step TakeInValue(char c, std::string& arguments);
  bool BeginValue(char c);
  JsonScanner::Step EndValue(std::string& arguments);
  JsonScanner::Step TakeAfterValue(char c, std::string& arguments);
  JsonScanner::Step End(std::string& arguments);
  void BeginIfKnown(std::string& arguments);

  At at_ = At::kBegin;
  std::string key_;  // raw
  bool key_escaped_ = false;
  bool value_begun_ = false;
  bool of_arguments_ = false;  // the value is
  std::string value_;          // JSON; not that of arguments that are an object
  JsonScanner scanner_;
  Arguments arguments_ = Arguments::kNone;
  std::string kept_;        // arguments of a call that has not begun
  int object_chars_ = 0;    // of these, without white space
  bool confirmed_ = false;  // the arguments begin as an object does
  bool begun_ = false, whole_ = false;
  std::optional<std::string> name_;
};

// What a text has of calls.
struct ParsedCalls {
  std::vector<ToolCall> calls;
  std::optional<ToolCall> open;  // one that the text breaks off in: what it has of the arguments
  bool whole = false;            // the text is these calls and nothing else
};

// `tools`: the request's, for the types and names of values that are written without. `ended`: the
// text ends where the calls end; otherwise more might have come.
ParsedCalls ParseParameterTags(std::string_view text, const OrderedJson& tools, bool ended);
ParsedCalls ParseKeyValueTags(std::string_view text, const OrderedJson& tools, bool ended);
ParsedCalls ParsePythonCalls(std::string_view text, const OrderedJson& tools);

// How much of `text` cannot be the beginning of `token`, whose rest may still come. REQUIRES: the
// token is not empty.
size_t Settled(std::string_view text, std::string_view token);

// Whether a text begins as calls in tags do; nullopt: more of it must come.
std::optional<bool> BeginsParameterTags(std::string_view text);
std::optional<bool> BeginsKeyValueTags(std::string_view text);

// A value in Python's syntax as JSON; nullopt: it is none.
std::optional<std::string> ParsePythonValue(std::string_view text);

}  // namespace millrace::text
