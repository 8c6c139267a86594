#include "base/json.h"

#include <fmt/format.h>

namespace millrace {
namespace {

// Counts brackets outside strings. The limit protects nlohmann's recursive destructor and copy.
Status CheckDepth(std::string_view text, int depth_max) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > depth_max) {
        return InvalidArgument(
            fmt::format("JSON nests deeper than {} levels at byte {}", depth_max, i));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return OkStatus();
}

template <typename Value>
Result<Value> ParseAs(std::string_view text, int depth_max) {
  MR_RETURN_IF_ERROR(CheckDepth(text, depth_max));
  try {
    return Value::parse(text);
  } catch (const Json::parse_error& error) {
    return InvalidArgument(fmt::format("malformed JSON at byte {}", error.byte));
  } catch (const Json::exception&) {  // for example, a number out of range
    return InvalidArgument("malformed JSON: a number is out of range");
  }
}

}  // namespace

Result<Json> ParseJson(std::string_view text, int depth_max) {
  return ParseAs<Json>(text, depth_max);
}

Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, int depth_max) {
  return ParseAs<nlohmann::ordered_json>(text, depth_max);
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace
