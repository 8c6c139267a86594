// The syntaxes of single tool calls. Values; one thread each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace millrace::text {

using OrderedJson = nlohmann::ordered_json;  // keys stay in the order of the text

// One whole call.
struct ToolCall {
  std::string name;
  std::string arguments;  // JSON of an object
};

// Follows a JSON value character by character.
class JsonScanner {
 public:
  enum class Step { kMore, kDone, kAfter, kBad };
  // kDone: the value ends with this character; kAfter: it ended before it (numbers, true, null).
  Step Take(char c);

 private:
  bool begun_ = false, string_ = false, escaped_ = false, scalar_ = false;
  int depth_ = 0;
};

// Follows {"name": ..., "arguments": ...} character by character, and returns the arguments as they
// come once the name is known. "parameters" is a name for the arguments, too.
class CallObject {
 public:
  // As of JsonScanner; appends to `arguments`. kBad: this is no call.
  JsonScanner::Step Take(char c, std::string& arguments);
  const std::optional<std::string>& name() const { return name_; }

 private:
  enum class At { kBegin, kKey, kInKey, kColon, kValue, kAfterValue };
  JsonScanner::Step TakeInValue(char c, std::string& arguments);
  JsonScanner::Step EndValue(std::string& arguments);
  JsonScanner::Step TakeAfterValue(char c, std::string& arguments);
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  At at_ = At::kBegin;
  std::string key_;    // raw
  std::string value_;  // raw; not that of arguments that are returned as they come
  bool key_escaped_ = false;
  bool value_begun_ = false;
  bool quoted_ = false;  // the arguments are JSON within a string
  bool arguments_known_ = false;
  std::string kept_arguments_;  // that came before the name
  JsonScanner value_scanner_;
  std::optional<std::string> name_;
};

// The whole text of calls. nullopt: it is none. `tools`: the request's, for the types of values
// that are written without quotes.
std::optional<ToolCall> ParseParameterTags(std::string_view text, const Json& tools);
std::optional<ToolCall> ParseKeyValueTags(std::string_view text, const Json& tools);
std::optional<std::vector<ToolCall>> ParsePythonCalls(std::string_view text);

}  // namespace millrace::text
