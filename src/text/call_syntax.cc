#include "text/call_syntax.h"

#include <algorithm>
#include <utility>

namespace millrace::text {
namespace {

using Step = JsonScanner::Step;

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

OrderedJson ParseOr(std::string_view text, OrderedJson otherwise) {
  OrderedJson parsed = OrderedJson::parse(text, nullptr, false);
  return parsed.is_discarded() ? otherwise : parsed;
}

// The type that the tool's schema gives the parameter; empty: none.
std::string TypeOf(const Json& tools, const std::string& name, const std::string& key) {
  for (const Json& tool : tools) {
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || function.value("name", Json()) != Json(name)) continue;
    const Json::json_pointer path("/parameters/properties");
    if (!function.contains(path) || !function[path].is_object()) return "";
    const Json property = function[path].value(key, Json());
    if (!property.is_object()) return "";
    const Json type = property.value("type", Json());
    return type.is_string() ? type.get<std::string>() : "";
  }
  return "";
}

OrderedJson Typed(std::string_view value, const std::string& type) {
  if (type == "string") return OrderedJson(std::string(value));
  if (value == "True" || value == "False") return OrderedJson(value == "True");
  if (value == "None") return OrderedJson(nullptr);
  return ParseOr(Trimmed(value), OrderedJson(std::string(value)));
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// What is between `begin` and `end` from `at` on; moves `at` behind it.
std::optional<std::string_view> Between(std::string_view text, std::string_view begin,
                                        std::string_view end, size_t& at) {
  const size_t from = text.find(begin, at);
  if (from == std::string_view::npos) return std::nullopt;
  const size_t to = text.find(end, from + begin.size());
  if (to == std::string_view::npos) return std::nullopt;
  at = to + end.size();
  return text.substr(from + begin.size(), to - from - begin.size());
}

}  // namespace

Step JsonScanner::Take(char c) {
  if (string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      string_ = false;
      return depth_ == 0 ? Step::kDone : Step::kMore;
    }
    return Step::kMore;
  }
  if (scalar_) return IsBlank(c) || c == ',' || c == '}' || c == ']' ? Step::kAfter : Step::kMore;
  if (!begun_ && IsBlank(c)) return Step::kMore;
  const bool first = !std::exchange(begun_, true);
  switch (c) {
    case '"': string_ = true; return Step::kMore;
    case '{':
    case '[': ++depth_; return Step::kMore;
    case '}':
    case ']':
      if (first) return Step::kBad;
      return --depth_ == 0 ? Step::kDone : Step::kMore;
    default: break;
  }
  if (!first) return Step::kMore;
  scalar_ = c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' || c == 'n';
  return scalar_ ? Step::kMore : Step::kBad;
}

Step CallObject::Take(char c, std::string& arguments) {
  switch (at_) {
    case At::kBegin: at_ = At::kKey; return c == '{' ? Step::kMore : Step::kBad;
    case At::kKey:
      if (IsBlank(c)) return Step::kMore;
      at_ = At::kInKey;
      key_.clear();
      return c == '"' ? Step::kMore : Step::kBad;
    case At::kInKey:
      if (c == '"' && !key_escaped_) {
        at_ = At::kColon;
        return Step::kMore;
      }
      key_escaped_ = c == '\\' && !key_escaped_;
      key_ += c;
      return Step::kMore;
    case At::kColon:
      if (IsBlank(c)) return Step::kMore;
      at_ = At::kValue;
      value_.clear();
      value_begun_ = false;
      value_scanner_ = JsonScanner();
      return c == ':' ? Step::kMore : Step::kBad;
    case At::kValue: return TakeInValue(c, arguments);
    case At::kAfterValue: return TakeAfterValue(c, arguments);
  }
  return Step::kBad;
}

Step CallObject::TakeInValue(char c, std::string& arguments) {
  if (!value_begun_ && IsBlank(c)) return Step::kMore;
  if (!std::exchange(value_begun_, true) && IsArguments()) {
    quoted_ = c == '"';
    arguments_known_ = true;
  }
  const Step step = value_scanner_.Take(c);
  if (step == Step::kBad) return step;
  if (step == Step::kAfter) {
    const Step ended = EndValue(arguments);
    return ended == Step::kBad ? ended : TakeAfterValue(c, arguments);
  }
  if (IsArguments() && !quoted_) {
    (name_ ? arguments : kept_arguments_) += c;
  } else {
    value_ += c;
  }
  return step == Step::kDone ? EndValue(arguments) : Step::kMore;
}

Step CallObject::EndValue(std::string& arguments) {
  at_ = At::kAfterValue;
  if (key_ == "name") {
    const OrderedJson name = ParseOr(value_, nullptr);
    if (!name.is_string() || name.get_ref<const std::string&>().empty() || name_) {
      return Step::kBad;
    }
    name_ = name.get<std::string>();
    arguments += std::exchange(kept_arguments_, {});
  } else if (IsArguments() && quoted_) {
    const OrderedJson text = ParseOr(value_, nullptr);
    if (!text.is_string()) return Step::kBad;
    (name_ ? arguments : kept_arguments_) += text.get<std::string>();
  }
  return Step::kMore;
}

Step CallObject::TakeAfterValue(char c, std::string& arguments) {
  if (IsBlank(c)) return Step::kMore;
  if (c == ',') {
    at_ = At::kKey;
    return Step::kMore;
  }
  if (c != '}' || !name_) return Step::kBad;
  if (!arguments_known_) arguments += "{}";
  return Step::kDone;
}

std::optional<ToolCall> ParseParameterTags(std::string_view text, const Json& tools) {
  size_t at = 0;
  const auto name = Between(text, "<function=", ">", at);
  if (!name || Trimmed(*name).empty()) return std::nullopt;
  ToolCall call{.name = std::string(Trimmed(*name)), .arguments = {}};
  OrderedJson arguments = OrderedJson::object();
  while (const auto key = Between(text, "<parameter=", ">", at)) {
    size_t end = text.find("</parameter>", at);
    if (end == std::string_view::npos) break;
    std::string_view value = text.substr(at, end - at);
    at = end;
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    const std::string name_of_key(Trimmed(*key));
    arguments[name_of_key] = Typed(value, TypeOf(tools, call.name, name_of_key));
  }
  call.arguments = Dump(arguments);
  return call;
}

std::optional<ToolCall> ParseKeyValueTags(std::string_view text, const Json& tools) {
  ToolCall call;
  const size_t name_end = text.find("<arg_key>");
  call.name = std::string(Trimmed(text.substr(0, name_end)));
  if (call.name.empty()) return std::nullopt;
  OrderedJson arguments = OrderedJson::object();
  size_t at = std::min(name_end, text.size());
  while (const auto key = Between(text, "<arg_key>", "</arg_key>", at)) {
    const auto value = Between(text, "<arg_value>", "</arg_value>", at);
    if (!value) break;
    const std::string name_of_key(Trimmed(*key));
    arguments[name_of_key] = Typed(*value, TypeOf(tools, call.name, name_of_key));
  }
  call.arguments = Dump(arguments);
  return call;
}

}  // namespace millrace::text
