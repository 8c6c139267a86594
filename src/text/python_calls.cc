// Calls in Python's syntax: [name(key=value, ...), ...].
#include <algorithm>
#include <charconv>
#include <utility>

#include "text/call_syntax.h"
#include "text/json_text.h"
#include "text/python_literal.h"
#include "text/typed_value.h"

namespace millrace::text {
namespace {

constexpr int kPythonDepthMax = 64;

// A name followed by parentheses, with the values in them; and lists of these.
class PythonReader {
 public:
  PythonReader(std::string_view text, const OrderedJson& tools) : rest_(text), tools_(tools) {}

  // Whether the text is calls and nothing else.
  bool Calls() {
    const bool list = Skip('[');
    do {
      if (list && !calls_.empty() && Skip(']')) return AtEnd();  // after a comma at the end
      if (!Call()) return false;
    } while (Skip(','));
    return (!list || Skip(']')) && AtEnd();
  }

  std::optional<std::string> OnlyValue() {
    auto value = Value(0);
    return AtEnd() ? value : std::nullopt;
  }

  std::vector<ToolCall> TakeCalls() { return std::move(calls_); }
  std::optional<ToolCall> TakeOpen() { return std::move(open_); }

 private:
  bool Call() {
    const std::string name = Name();
    if (name.empty() || !Skip('(')) return false;
    JsonObjectWriter arguments;
    if (Arguments(name, arguments)) {
      calls_.push_back({.name = name, .arguments = arguments.Text()});
      return true;
    }
    if (rest_.empty()) open_ = ToolCall{.name = name, .arguments = arguments.Open()};
    return false;
  }

  bool Arguments(const std::string& function, JsonObjectWriter& arguments) {
    size_t position = 0;
    while (!Skip(')')) {
      if (position > 0 && !Skip(',')) return false;
      if (position > 0 && Skip(')')) return true;  // a comma at the end
      const std::string_view before = rest_;
      std::string key = Name();
      if (key.empty() || !Skip('=')) {
        rest_ = before;
        key = ParameterAt(function, position);
      }
      if (key.empty()) return false;
      auto value = Value(0);
      // A value may go on where the text ends.
      if (!value || rest_.empty()) return false;
      arguments.Set(key, *std::move(value));
      ++position;
    }
    return true;
  }

  // The name of a parameter without one: they are in the order of the schema.
  std::string ParameterAt(const std::string& function, size_t position) const {
    const OrderedJson* schema = ArgumentsSchemaOf(tools_, function);
    if (schema == nullptr) return "";
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) return "";
    if (position >= properties->size()) return "";
    return std::next(properties->begin(), static_cast<std::ptrdiff_t>(position)).key();
  }

  std::optional<std::string> Value(int depth) {
    SkipSpace();
    if (rest_.empty() || depth > kPythonDepthMax) return std::nullopt;
    if (BeginsPythonString(rest_)) return Strings();
    switch (rest_.front()) {
      case '[': return List('[', ']', depth);
      case '(': return List('(', ')', depth);
      case '{': return Braces(depth);
      default: break;
    }
    if (std::string_view("+-.0123456789").find(rest_.front()) != std::string_view::npos) {
      return TakePythonNumber(rest_);
    }
    const std::string name = Name();
    if (name == "True" || name == "true") return "true";
    if (name == "False" || name == "false") return "false";
    if (name == "None" || name == "null") return "null";
    return std::nullopt;
  }

  // Literals beside each other are one.
  std::optional<std::string> Strings() {
    std::string text;
    while (BeginsPythonString(rest_)) {
      const auto next = TakePythonString(rest_);
      if (!next) return std::nullopt;
      text += *next;
      SkipSpace();
    }
    return JsonString(text);
  }

  // Also a tuple; a value in parentheses is the value.
  std::optional<std::string> List(char open, char close, int depth) {
    Skip(open);
    std::string values;
    size_t count = 0;
    bool comma = false;
    while (!Skip(close)) {
      if (count > 0 && !comma) return std::nullopt;
      auto value = Value(depth + 1);
      if (!value) return std::nullopt;
      if (count++ > 0) values += ',';
      values += *value;
      comma = Skip(',');
    }
    return open == '(' && count == 1 && !comma ? values : "[" + values + "]";
  }

  // A dictionary, or a set, which becomes a list.
  std::optional<std::string> Braces(int depth) {
    const std::string_view before = rest_;
    Skip('{');
    JsonObjectWriter dictionary;
    bool comma = true;
    while (!Skip('}')) {
      if (!comma) return std::nullopt;
      const auto key = Value(depth + 1);
      if (!key) return std::nullopt;
      if (!Skip(':')) {
        if (!dictionary.empty()) return std::nullopt;
        rest_ = before;
        return List('{', '}', depth);
      }
      auto value = Value(depth + 1);
      if (!value || key->front() == '[' || key->front() == '{') return std::nullopt;
      dictionary.Set(key->front() == '"' ? OrderedJson::parse(*key).get<std::string>() : *key,
                     *std::move(value));
      comma = Skip(',');
    }
    return dictionary.Text();
  }

  std::string Name() {
    SkipSpace();
    size_t size = 0;
    const auto within = [](char c) {
      return c == '_' || c == '.' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
             (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
    };
    while (size < rest_.size() && within(rest_[size])) ++size;
    std::string name(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return name;
  }

  bool Skip(char c) {
    SkipSpace();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void SkipSpace() {
    const size_t first = rest_.find_first_not_of(" \n\r\t");
    rest_.remove_prefix(std::min(first, rest_.size()));
  }
  bool AtEnd() {
    SkipSpace();
    return rest_.empty();
  }

  std::string_view rest_;
  const OrderedJson& tools_;
  std::vector<ToolCall> calls_;
  std::optional<ToolCall> open_;
};

}  // namespace

ParsedCalls ParsePythonCalls(std::string_view text, const OrderedJson& tools) {
  PythonReader reader(text, tools);
  ParsedCalls parsed;
  parsed.whole = reader.Calls();
  parsed.calls = reader.TakeCalls();
  parsed.open = reader.TakeOpen();
  return parsed;
}

std::optional<std::string> ParsePythonValue(std::string_view text) {
  static const OrderedJson none;
  return PythonReader(text, none).OnlyValue();
}

}  // namespace millrace::text
