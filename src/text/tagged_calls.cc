// Calls whose arguments are written in tags, without quotes.
#include <algorithm>
#include <array>
#include <utility>

#include "text/call_syntax.h"
#include "text/typed_value.h"

namespace millrace::text {
namespace {

constexpr std::string_view kTagBlanks = " \n\r\t";

std::string_view TrimmedText(std::string_view text) {
  const size_t first = text.find_first_not_of(kTagBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kTagBlanks) - first + 1);
}

std::string_view AfterBlanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kTagBlanks), text.size()));
  return text;
}

// Whether the text begins with one of the tags; nullopt: it may, with more text.
template <size_t N>
std::optional<bool> BeginsWithOne(std::string_view text,
                                  const std::array<std::string_view, N>& tags) {
  for (const std::string_view tag : tags) {
    if (text.starts_with(tag)) return true;
  }
  for (const std::string_view tag : tags) {
    if (tag.starts_with(text)) return std::nullopt;
  }
  return false;
}

class TagReader {
 public:
  TagReader(std::string_view text, const OrderedJson& tools, bool ended)
      : rest_(text), tools_(tools), ended_(ended) {}

  ParsedCalls ParameterTags() {
    do {
      SkipBlanks();
      if (!Skip("<function=")) return std::move(parsed_);
      const auto name = Until(">");
      if (!name || !Begin(*name)) return std::move(parsed_);
      bool closed = false;
      while (!closed && !rest_.empty()) {
        SkipBlanks();
        if (rest_.empty()) break;
        closed = Skip("</function>");
        if (!closed && !Parameter()) return std::move(parsed_);
      }
      if (closed || ended_) {
        End();
      } else {
        Break();
      }
      SkipBlanks();
    } while (rest_.starts_with("<function="));
    parsed_.whole = !parsed_.calls.empty() && rest_.empty();
    return std::move(parsed_);
  }

  ParsedCalls KeyValueTags() {
    SkipBlanks();
    const size_t size = std::min(rest_.find_first_of("< \n\r\t"), rest_.size());
    const std::string_view name = rest_.substr(0, size);
    rest_.remove_prefix(size);
    // A name at the end of a text that is cut off may be a part of one.
    if ((rest_.empty() && !ended_) || !Begin(name)) return std::move(parsed_);
    SkipBlanks();
    while (!rest_.empty()) {
      if (!KeyAndValue()) return std::move(parsed_);
      SkipBlanks();
    }
    if (ended_) {
      End();
    } else {
      Break();
    }
    parsed_.whole = ended_;
    return std::move(parsed_);
  }

 private:
  bool Begin(std::string_view name) {
    name = TrimmedText(name);
    if (!IsBareName(name)) return false;
    name_ = name;
    arguments_ = JsonObjectWriter();
    schema_ = ArgumentsSchemaOf(tools_, name_);
    return true;
  }
  void End() { parsed_.calls.push_back({.name = name_, .arguments = arguments_.Text()}); }
  // The text breaks off.
  void Break() { parsed_.open = ToolCall{.name = name_, .arguments = arguments_.Open()}; }

  // <parameter=key>, a line end, the value, a line end, </parameter>. False: the text breaks off.
  bool Parameter() {
    const bool here = Skip("<parameter=");
    const auto key = here ? Until(">") : std::nullopt;
    if (!key) return Fail({"<parameter=", "</function>"}, here);
    auto value = UntilLast("</parameter>", {"<parameter=", "</function>"});
    if (!value) value = UntilNext({"\n<parameter=", "\n</function>"});
    if (!value) return Fail({"", ""}, true);
    if (value->starts_with('\n')) value->remove_prefix(1);
    if (value->ends_with('\n')) value->remove_suffix(1);
    Set(*key, *value);
    return true;
  }

  bool KeyAndValue() {
    const bool key_begins = Skip("<arg_key>");
    const auto key = key_begins ? Until("</arg_key>") : std::nullopt;
    if (!key) return Fail({"<arg_key>", ""}, key_begins);
    SkipBlanks();
    const bool value_begins = Skip("<arg_value>");
    const auto value = value_begins ? UntilLast("</arg_value>", {"<arg_key>", ""}) : std::nullopt;
    if (!value) return Fail({"<arg_value>", ""}, value_begins);
    Set(*key, *value);
    return true;
  }

  void Set(std::string_view key, std::string_view value) {
    const std::string name(TrimmedText(key));
    arguments_.Set(name, TypedValue(schema_, name, value));
  }

  // `within`: a tag is open. What is left is a part of a call if it is that or may become a tag.
  bool Fail(const std::array<std::string_view, 2>& tags, bool within) {
    const bool may_become = std::ranges::any_of(
        tags, [this](std::string_view tag) { return !tag.empty() && tag.starts_with(rest_); });
    if (!ended_ && (within || may_become)) Break();
    return false;
  }

  bool Skip(std::string_view tag) {
    if (!rest_.starts_with(tag)) return false;
    rest_.remove_prefix(tag.size());
    return true;
  }
  void SkipBlanks() { rest_ = AfterBlanks(rest_); }

  std::optional<std::string_view> Until(std::string_view tag) {
    const size_t found = rest_.find(tag);
    if (found == std::string_view::npos) return std::nullopt;
    const std::string_view before = rest_.substr(0, found);
    rest_.remove_prefix(found + tag.size());
    return before;
  }

  // Until the first closing tag that one of `next`, or the end, follows: others are in the value.
  std::optional<std::string_view> UntilLast(std::string_view close,
                                            const std::array<std::string_view, 2>& next) {
    for (size_t at = 0; (at = rest_.find(close, at)) != std::string_view::npos;
         at += close.size()) {
      const std::string_view after = AfterBlanks(rest_.substr(at + close.size()));
      const bool follows = std::ranges::any_of(next, [&](std::string_view tag) {
        return !tag.empty() && (after.starts_with(tag) || (!ended_ && tag.starts_with(after)));
      });
      if (!after.empty() && !follows) continue;
      const std::string_view before = rest_.substr(0, at);
      rest_.remove_prefix(at + close.size());
      return before;
    }
    return std::nullopt;
  }

  std::optional<std::string_view> UntilNext(const std::array<std::string_view, 2>& tags) {
    const size_t found = std::min(rest_.find(tags[0]), rest_.find(tags[1]));
    if (found == std::string_view::npos) return std::nullopt;
    const std::string_view before = rest_.substr(0, found);
    rest_.remove_prefix(found);
    return before;
  }

  std::string_view rest_;
  const OrderedJson& tools_;
  const bool ended_;
  std::string name_;
  const OrderedJson* schema_ = nullptr;
  JsonObjectWriter arguments_;
  ParsedCalls parsed_;
};

}  // namespace

ParsedCalls ParseParameterTags(std::string_view text, const OrderedJson& tools, bool ended) {
  return TagReader(text, tools, ended).ParameterTags();
}

ParsedCalls ParseKeyValueTags(std::string_view text, const OrderedJson& tools, bool ended) {
  return TagReader(text, tools, ended).KeyValueTags();
}

std::optional<bool> BeginsParameterTags(std::string_view text) {
  constexpr std::string_view kFunction = "<function=";
  text = AfterBlanks(text);
  if (const auto begins = BeginsWithOne<1>(text, {kFunction}); begins != true) return begins;
  text.remove_prefix(kFunction.size());
  const size_t end = text.find('>');
  const std::string_view name = TrimmedText(text.substr(0, end));
  if (!name.empty() && !IsBareName(name)) return false;
  if (end == std::string_view::npos) return std::nullopt;
  if (name.empty()) return false;
  return BeginsWithOne<2>(AfterBlanks(text.substr(end + 1)), {"<parameter=", "</function>"});
}

std::optional<bool> BeginsKeyValueTags(std::string_view text) {
  text = AfterBlanks(text);
  const size_t end = std::min(text.find_first_of("< \n\r\t"), text.size());
  if (end > 0 && !IsBareName(text.substr(0, end))) return false;
  const std::string_view after = AfterBlanks(text.substr(end));
  if (after.empty()) return std::nullopt;
  if (end == 0) return false;
  return BeginsWithOne<2>(after, {"<arg_key>", "</tool_call>"});
}

}  // namespace millrace::text
