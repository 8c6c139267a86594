// WholeCalls: calls of the syntaxes that are parsed as a whole (tags, Python): where they end in a
// text that is still coming, and what they are. It remembers how far it has looked, so that a long
// call costs no more for coming in small pieces.
//
// Owned by an AnswerParser, one thread at a time. Refers to the format, which is static.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/call_syntax.h"
#include "text/python_literal.h"
#include "text/tool_format.h"

namespace millrace::text {

class WholeCalls {
 public:
  // REQUIRES: calls come only if the format's syntax is kPython, kParameterTags or kKeyValueTags.
  explicit WholeCalls(const ToolFormat& format) : format_(&format) {}

  // Other calls begin.
  void Reset();
  // Whether the calls' own beginning is in `text`; nullopt: more of it must come to tell.
  std::optional<bool> Begins(std::string_view text) const;
  // Where the calls end that `text` begins with; nullopt: not in it. `text` is that of the last
  // call, or goes on from it. `bare`: what began the calls is a part of the text.
  // `schemas`: the request's tools.
  std::optional<size_t> FindEnd(std::string_view text, bool bare, const OrderedJson& schemas);
  // `ended`: no more of the text will come.
  ParsedCalls Parse(std::string_view text, bool ended, const OrderedJson& schemas) const;
  // What ends the calls; empty: they end by themselves.
  std::string_view end() const;

 private:
  std::optional<size_t> FindPythonEnd(std::string_view text, const OrderedJson& schemas);
  std::optional<size_t> FindTagsEnd(std::string_view text, bool bare);

  const ToolFormat* format_;
  PythonListEnd list_end_;
  size_t scanned_ = 0;  // of the text
};

}  // namespace millrace::text
