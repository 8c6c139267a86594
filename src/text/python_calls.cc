// Calls in Python's syntax: [name(key=value, ...), ...].
#include <charconv>
#include <utility>

#include "text/call_syntax.h"

namespace millrace::text {
namespace {

constexpr int kDepthMax = 64;

bool Is(char c, std::string_view any) { return any.find(c) != std::string_view::npos; }

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : rest_(text) {}

  std::optional<std::vector<ToolCall>> Calls() {
    std::vector<ToolCall> calls;
    const bool list = Skip('[');
    do {
      auto call = Call();
      if (!call) return std::nullopt;
      calls.push_back(*std::move(call));
    } while (Skip(','));
    if (list && !Skip(']')) return std::nullopt;
    SkipSpace();
    if (!rest_.empty()) return std::nullopt;
    return calls;
  }

 private:
  std::optional<ToolCall> Call() {
    ToolCall call{.name = Name(), .arguments = {}};
    if (call.name.empty() || !Skip('(')) return std::nullopt;
    OrderedJson arguments = OrderedJson::object();
    while (!Skip(')')) {
      if (!arguments.empty() && !Skip(',')) return std::nullopt;
      const std::string key = Name();
      if (key.empty() || !Skip('=')) return std::nullopt;
      auto value = Value(0);
      if (!value) return std::nullopt;
      arguments[key] = *std::move(value);
    }
    call.arguments = arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    return call;
  }

  std::optional<OrderedJson> Value(int depth) {
    SkipSpace();
    if (rest_.empty() || depth > kDepthMax) return std::nullopt;
    const char c = rest_.front();
    if (c == '"' || c == '\'') return String(c);
    if (c == '[') return List(depth);
    if (c == '{') return Dictionary(depth);
    if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9')) return Number();
    const std::string name = Name();
    if (name == "True" || name == "true") return OrderedJson(true);
    if (name == "False" || name == "false") return OrderedJson(false);
    if (name == "None" || name == "null") return OrderedJson(nullptr);
    return std::nullopt;
  }

  std::optional<OrderedJson> List(int depth) {
    Skip('[');
    OrderedJson list = OrderedJson::array();
    while (!Skip(']')) {
      if (!list.empty() && !Skip(',')) return std::nullopt;
      auto value = Value(depth + 1);
      if (!value) return std::nullopt;
      list.push_back(*std::move(value));
    }
    return list;
  }

  std::optional<OrderedJson> Dictionary(int depth) {
    Skip('{');
    OrderedJson dictionary = OrderedJson::object();
    while (!Skip('}')) {
      if (!dictionary.empty() && !Skip(',')) return std::nullopt;
      const auto key = Value(depth + 1);
      if (!key || !key->is_string() || !Skip(':')) return std::nullopt;
      auto value = Value(depth + 1);
      if (!value) return std::nullopt;
      dictionary[key->get<std::string>()] = *std::move(value);
    }
    return dictionary;
  }

  std::optional<OrderedJson> String(char quote) {
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.empty() && rest_.front() != quote) {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '\\' && !rest_.empty()) {
        c = rest_.front();
        rest_.remove_prefix(1);
        if (c == 'n') c = '\n';
        if (c == 't') c = '\t';
        if (c == 'r') c = '\r';
      }
      text += c;
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    return OrderedJson(std::move(text));
  }

  std::optional<OrderedJson> Number() {
    size_t size = 0;
    while (size < rest_.size() && Is(rest_[size], "+-.eE0123456789")) ++size;
    std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (text.starts_with('+')) text.remove_prefix(1);
    int64_t integer = 0;
    const char* const end = text.data() + text.size();
    if (const auto [at, error] = std::from_chars(text.data(), end, integer);
        error == std::errc() && at == end) {
      return OrderedJson(integer);
    }
    double real = 0;
    if (const auto [at, error] = std::from_chars(text.data(), end, real);
        error == std::errc() && at == end) {
      return OrderedJson(real);
    }
    return std::nullopt;
  }

  std::string Name() {
    SkipSpace();
    size_t size = 0;
    const auto within = [&](char c) {
      return c == '_' || c == '.' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
             (c >= 'A' && c <= 'Z');
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
    while (!rest_.empty() && Is(rest_.front(), " \n\r\t")) {
      rest_.remove_prefix(1);
    }
  }

  std::string_view rest_;
};

}  // namespace

std::optional<std::vector<ToolCall>> ParsePythonCalls(std::string_view text) {
  return PythonReader(text).Calls();
}

}  // namespace millrace::text
