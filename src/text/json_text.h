// JSON as text, for arguments of calls: numbers keep their digits and keys their order. Values and
// pure functions; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace millrace::text {

using OrderedJson = nlohmann::ordered_json;  // keys stay in the order of the text

// A JSON string; what is not UTF-8 becomes U+FFFD.
std::string JsonString(std::string_view text);

// Whether the text is a number of JSON.
bool IsJsonNumber(std::string_view text);

// The same JSON value without white space; nullopt: it is none.
std::optional<std::string> CompactJson(std::string_view text);

// A JSON object that is put together. The last of several equal keys counts.
class JsonObjectWriter {
 public:
  void Set(const std::string& key, std::string value_json);
  bool empty() const { return members_.empty(); }
  std::string Text() const { return Open() + "}"; }
  // Without the brace at its end.
  std::string Open() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
  std::map<std::string, size_t> places_;
};

}  // namespace millrace::text
