#include "text/whole_calls.h"

namespace millrace::text {
namespace {

std::string_view WithoutSpacesAtEnd(std::string_view text) {
  const size_t last = text.find_last_not_of(" \n\r\t");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

void WholeCalls::Reset() {
  scanned_ = 0;
  list_end_ = PythonListEnd();
}

std::string_view WholeCalls::end() const {
  return format_->syntax == CallSyntax::kPython ? format_->section_end : format_->call_end;
}

std::optional<bool> WholeCalls::Begins(std::string_view text) const {
  switch (format_->syntax) {
    case CallSyntax::kParameterTags: return BeginsParameterTags(text);
    case CallSyntax::kKeyValueTags: return BeginsKeyValueTags(text);
    default: return true;
  }
}

ParsedCalls WholeCalls::Parse(std::string_view text, bool ended, const OrderedJson& schemas) const {
  switch (format_->syntax) {
    case CallSyntax::kParameterTags: return ParseParameterTags(text, schemas, ended);
    case CallSyntax::kKeyValueTags: return ParseKeyValueTags(text, schemas, ended);
    default: return ParsePythonCalls(text, schemas);
  }
}

std::optional<size_t> WholeCalls::FindEnd(std::string_view text, bool bare,
                                          const OrderedJson& schemas) {
  return format_->syntax == CallSyntax::kPython ? FindPythonEnd(text, schemas)
                                                : FindTagsEnd(text, bare);
}

std::optional<size_t> WholeCalls::FindPythonEnd(std::string_view text, const OrderedJson& schemas) {
  if (format_->section_begin.empty()) {
    while (scanned_ < text.size()) {
      if (list_end_.Take(text[scanned_++])) return scanned_;
    }
    return std::nullopt;
  }
  // An end within a string is a part of it.
  for (size_t at = 0; (at = text.find(format_->section_end, at)) != std::string_view::npos;
       at += format_->section_end.size()) {
    const size_t end = at + format_->section_end.size();
    if (end <= scanned_) continue;
    const std::string_view inner = text.substr(0, at);
    PythonListEnd scan;
    for (const char c : inner) scan.Take(c);
    if (!scan.in_string() || Parse(inner, true, schemas).whole) return end;
    scanned_ = end;
  }
  return std::nullopt;
}

// The first end that is not within a value.
std::optional<size_t> WholeCalls::FindTagsEnd(std::string_view text, bool bare) {
  const bool keys = format_->syntax == CallSyntax::kKeyValueTags;
  const std::string_view end = bare ? "</function>" : format_->call_end;
  const std::string_view begin = keys ? "<arg_value>" : "<parameter=";
  const std::string_view close = keys ? "</arg_value>" : "</parameter>";
  const size_t from = scanned_ < end.size() ? 0 : scanned_ - end.size() + 1;
  scanned_ = text.size();
  for (size_t at = from; (at = text.find(end, at)) != std::string_view::npos; ++at) {
    const std::string_view before = text.substr(0, at);
    const size_t begun = before.rfind(begin), closed = before.rfind(close);
    const bool within = begun != std::string_view::npos &&
                        (closed == std::string_view::npos || closed < begun) &&
                        !WithoutSpacesAtEnd(before).ends_with("</function>");
    if (!within) return at + end.size();
  }
  return std::nullopt;
}

}  // namespace millrace::text
