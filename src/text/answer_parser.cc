#include "text/answer_parser.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::text {
namespace {

constexpr std::string_view kSpaces = " \n\r\t";
constexpr std::string_view kFences[] = {"```json", "```"};

bool IsSpace(char c) { return kSpaces.find(c) != std::string_view::npos; }

bool IsListed(char c) { return c == '[' || c == ']' || c == ',' || c == ';'; }

std::string_view WithoutSpaces(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// How much of `text` cannot be the beginning of `token`.
size_t Settled(std::string_view text, std::string_view token) {
  for (size_t size = std::min(text.size(), token.size() - 1); size > 0; --size) {
    if (token.starts_with(text.substr(text.size() - size))) return text.size() - size;
  }
  return text.size();
}

}  // namespace

AnswerParser::AnswerParser(AnswerParserOptions options) : options_(std::move(options)) {
  if (options_.reasoning != nullptr && options_.begins_in_reasoning) at_ = At::kReasoning;
}

void AnswerParser::Push(std::string_view text, AnswerPieces& out) {
  buffer_ += text;
  while (!buffer_.empty() && Step(out)) {
  }
}

void AnswerParser::Finish(AnswerPieces& out) {
  at_end_ = true;
  Push("", out);
  switch (at_) {
    case At::kReasoning: out.reasoning += buffer_; break;
    case At::kObject:
      if (!named_) NoCall(raw_, out);
      break;
    case At::kValue: break;
    case At::kStart:
    case At::kText:
    case At::kCalls:
    case At::kWhole: NoCall(buffer_, out); break;
  }
  if (calls_ == 0 && !reasoning_begun_) out.content += spaces_;
  buffer_.clear();
}

bool AnswerParser::Step(AnswerPieces& out) {
  switch (at_) {
    case At::kStart: return StepStart();
    case At::kReasoning: return StepReasoning(out);
    case At::kText: return StepText(out);
    case At::kCalls: return StepCalls(out);
    case At::kObject: return StepObject(out);
    case At::kValue: return StepValue(out);
    case At::kWhole: return StepWhole(out);
  }
  return false;
}

std::string_view AnswerParser::Opener() const {
  return options_.tools == nullptr ? std::string_view() : options_.tools->section_begin;
}

bool AnswerParser::MayBegin(std::string_view token) const {
  return !at_end_ && buffer_.size() < token.size() && token.starts_with(buffer_);
}

// Decides what an answer begins with.
bool AnswerParser::StepStart() {
  const size_t first = buffer_.find_first_not_of(kSpaces);
  if (first == std::string::npos) return false;
  if (options_.reasoning != nullptr) {
    const std::string_view begin = options_.reasoning->begin;
    const std::string_view here = std::string_view(buffer_).substr(first);
    if (here.starts_with(begin)) {
      buffer_.erase(0, first + begin.size());
      at_ = At::kReasoning;
      return true;
    }
    if (!at_end_ && here.size() < begin.size() && begin.starts_with(here)) return false;
  }
  if (reasoning_begun_) buffer_.erase(0, first);
  if (options_.tools != nullptr && Opener().empty()) return StepStartOfCalls();
  at_ = At::kText;
  return true;
}

// The format has no mark of its own: the answer begins with calls, or has none.
bool AnswerParser::StepStartOfCalls() {
  const size_t first = buffer_.find_first_not_of(kSpaces);
  const std::string_view here = std::string_view(buffer_).substr(first);
  if (!at_end_ && here.size() < kPythonTag.size() && kPythonTag.starts_with(here)) return false;
  at_ = At::kText;
  const bool python = options_.tools->syntax == CallSyntax::kPython;
  if (here.starts_with(kPythonTag)) {
    buffer_.erase(0, first + kPythonTag.size());
    at_ = At::kCalls;
  } else if (here[0] == '[' || (here[0] == '{' && !python)) {
    buffer_.erase(0, first);
    at_ = At::kCalls;
  }
  return true;
}

bool AnswerParser::StepReasoning(AnswerPieces& out) {
  const std::string_view end = options_.reasoning->end;
  if (!reasoning_begun_) {
    const size_t first = buffer_.find_first_not_of(kSpaces);
    if (first == std::string::npos) return false;
    buffer_.erase(0, first);
    reasoning_begun_ = true;
  }
  const size_t found = buffer_.find(end);
  if (found == std::string::npos) {
    // White space before the end does not belong to the reasoning.
    size_t settled = Settled(buffer_, end);
    while (settled > 0 && IsSpace(buffer_[settled - 1])) --settled;
    out.reasoning.append(buffer_, 0, settled);
    buffer_.erase(0, settled);
    return false;
  }
  std::string_view rest = std::string_view(buffer_).substr(0, found);
  while (!rest.empty() && IsSpace(rest.back())) rest.remove_suffix(1);
  out.reasoning += rest;
  buffer_.erase(0, found + end.size());
  at_ = At::kStart;
  return true;
}

// White space at the end is held back: none of it belongs to the content if calls follow.
void AnswerParser::AddContent(std::string_view text, AnswerPieces& out) {
  const size_t last = text.find_last_not_of(kSpaces);
  if (last == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  out.content += std::exchange(spaces_, {});
  out.content += text.substr(0, last + 1);
  spaces_ = text.substr(last + 1);
}

bool AnswerParser::StepText(AnswerPieces& out) {
  const std::string_view opener = Opener();
  if (opener.empty()) {
    AddContent(std::exchange(buffer_, {}), out);
    return false;
  }
  const size_t found = buffer_.find(opener);
  if (found == std::string::npos) {
    const size_t settled = at_end_ ? buffer_.size() : Settled(buffer_, opener);
    AddContent(std::string_view(buffer_).substr(0, settled), out);
    buffer_.erase(0, settled);
    return false;
  }
  AddContent(std::string_view(buffer_).substr(0, found), out);
  opened_ = std::exchange(spaces_, {}).append(opener);
  buffer_.erase(0, found + opener.size());
  at_ = At::kCalls;
  return true;
}

// Removes what is between calls. False: more text is needed to know.
bool AnswerParser::SkipTokens() {
  const ToolFormat& f = *options_.tools;
  const bool listed = f.syntax == CallSyntax::kJson;
  const std::array tokens = {f.call_begin,    f.call_end, f.section_end,
                             f.section_begin, kFences[0], kFences[1]};
  const auto begins = [this](std::string_view token) {
    return !token.empty() && buffer_.starts_with(token);
  };
  for (;;) {
    while (!buffer_.empty() && IsSpace(buffer_[0])) Skip(1);
    if (buffer_.empty() ||
        std::ranges::any_of(tokens, [this](std::string_view token) { return MayBegin(token); })) {
      return false;
    }
    const auto token = std::ranges::find_if(tokens, begins);  // a fence before its beginning
    if (token != tokens.end()) {
      Skip(token->size());
    } else if (listed && IsListed(buffer_[0])) {
      Skip(1);
    } else {
      return true;
    }
  }
}

void AnswerParser::Skip(size_t size) {
  if (!opened_.empty()) opened_.append(buffer_, 0, size);
  buffer_.erase(0, size);
}

// What follows an opening is no call: all of it is content.
void AnswerParser::NoCall(std::string_view text, AnswerPieces& out) {
  AddContent(std::exchange(opened_, {}).append(text), out);
}

bool AnswerParser::StepCalls(AnswerPieces& out) {
  switch (options_.tools->syntax) {
    case CallSyntax::kParameterTags:
    case CallSyntax::kKeyValueTags:
    case CallSyntax::kPython: at_ = At::kWhole; return true;
    case CallSyntax::kJson:
    case CallSyntax::kNameThenJson: break;
  }
  if (!SkipTokens()) return false;
  if (options_.tools->syntax == CallSyntax::kNameThenJson) return StepCallsNamed(out);
  if (buffer_[0] == '{') {
    object_ = CallObject();
    raw_.clear();
    named_ = false;
    at_ = At::kObject;
    return true;
  }
  if (!options_.tools->name_end.empty()) return StepCallsNamed(out);
  NoCall("", out);
  at_ = At::kText;
  return true;
}

// A name, its end, and where the arguments begin.
bool AnswerParser::StepCallsNamed(AnswerPieces& out) {
  const ToolFormat& f = *options_.tools;
  std::string_view rest = buffer_;
  if (MayBegin(f.name_begin)) return false;
  std::string_view name_end = f.name_end;
  if (!f.name_begin.empty() && rest.starts_with(f.name_begin)) {
    rest.remove_prefix(f.name_begin.size());
    // DeepSeek V3 writes the kind before the name, and a fence after it.
    if (f.name_begin.ends_with(f.name_end)) name_end = "\n";
  }
  const size_t end = rest.find(name_end);
  constexpr size_t kNameBytesMax = 512;
  if (end == std::string_view::npos) {
    if (!at_end_ && rest.size() < kNameBytesMax) return false;
    NoCall("", out);
    at_ = At::kText;
    return true;
  }
  std::string name(WithoutSpaces(rest.substr(0, end)));
  name = name.substr(0, name.find("[CALL_ID]"));  // Mistral
  // Kimi numbers its calls.
  if (f.name_begin == "functions.") name = name.substr(0, name.rfind(':'));
  if (name.empty()) {
    NoCall("", out);
    at_ = At::kText;
    return true;
  }
  std::string_view value = rest.substr(end + name_end.size());
  const size_t fence = value.find_first_not_of(kSpaces);
  if (fence == std::string_view::npos) return false;
  value.remove_prefix(fence);
  if (!at_end_ && value.size() < kFences[0].size() && kFences[0].starts_with(value)) return false;
  if (value.starts_with(kFences[0])) value.remove_prefix(kFences[0].size());
  buffer_ = std::string(value);
  Begin(std::move(name), out);
  value_ = JsonScanner();
  value_begun_ = false;
  at_ = At::kValue;
  return true;
}

bool AnswerParser::StepObject(AnswerPieces& out) {
  std::string arguments;
  size_t taken = 0;
  JsonScanner::Step step = JsonScanner::Step::kMore;
  while (taken < buffer_.size() && step == JsonScanner::Step::kMore) {
    step = object_.Take(buffer_[taken++], arguments);
  }
  raw_.append(buffer_, 0, taken);
  buffer_.erase(0, taken);
  if (object_.name() && !named_) {
    named_ = true;
    Begin(*object_.name(), out);
  }
  if (named_) AddArguments(arguments, out);
  if (step == JsonScanner::Step::kMore) return false;
  if (step == JsonScanner::Step::kBad && !named_) NoCall(raw_, out);
  at_ = step == JsonScanner::Step::kBad ? At::kText : At::kCalls;
  return true;
}

bool AnswerParser::StepValue(AnswerPieces& out) {
  if (!value_begun_) {
    buffer_.erase(0, std::min(buffer_.find_first_not_of(kSpaces), buffer_.size()));
    if (buffer_.empty()) return false;
    value_begun_ = true;
  }
  size_t taken = 0;
  JsonScanner::Step step = JsonScanner::Step::kMore;
  while (taken < buffer_.size()) {
    step = value_.Take(buffer_[taken]);
    if (step == JsonScanner::Step::kAfter || step == JsonScanner::Step::kBad) break;
    ++taken;
    if (step == JsonScanner::Step::kDone) break;
  }
  AddArguments(std::string_view(buffer_).substr(0, taken), out);
  buffer_.erase(0, taken);
  if (step == JsonScanner::Step::kMore) return false;
  at_ = step == JsonScanner::Step::kBad ? At::kText : At::kCalls;
  return true;
}

// Where the call ends that the buffer begins with.
std::optional<size_t> AnswerParser::WholeEnd() const {
  const ToolFormat& f = *options_.tools;
  const std::string_view end = f.syntax == CallSyntax::kPython ? f.section_end : f.call_end;
  if (!end.empty()) {
    const size_t found = buffer_.find(end);
    return found == std::string::npos ? std::nullopt : std::optional(found + end.size());
  }
  char quote = 0;
  bool escaped = false;
  int depth = 0;
  for (size_t i = 0; i < buffer_.size(); ++i) {
    const char c = buffer_[i];
    if (quote != 0) {
      if (c == quote && !escaped) quote = 0;
      escaped = c == '\\' && !escaped;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']' && --depth == 0) {
      return i + 1;
    }
  }
  return std::nullopt;
}

bool AnswerParser::StepWhole(AnswerPieces& out) {
  const std::optional<size_t> end = WholeEnd();
  if (!end) return false;
  const std::string text = buffer_.substr(0, *end);
  buffer_.erase(0, *end);
  at_ = At::kText;
  AddWhole(text, out);
  return true;
}

void AnswerParser::AddWhole(std::string_view text, AnswerPieces& out) {
  const ToolFormat& f = *options_.tools;
  std::string_view inner = text;
  for (const std::string_view end : {f.call_end, f.section_end}) {
    if (!end.empty() && inner.ends_with(end)) inner.remove_suffix(end.size());
  }
  std::vector<ToolCall> calls;
  if (f.syntax == CallSyntax::kPython) {
    calls = ParsePythonCalls(inner).value_or(std::vector<ToolCall>());
  } else {
    auto call = f.syntax == CallSyntax::kParameterTags ? ParseParameterTags(inner, options_.schemas)
                                                       : ParseKeyValueTags(inner, options_.schemas);
    if (call) calls.push_back(*std::move(call));
  }
  if (calls.empty()) return NoCall(text, out);
  for (ToolCall& call : calls) {
    Begin(std::move(call.name), out);
    AddArguments(call.arguments, out);
  }
}

void AnswerParser::Begin(std::string name, AnswerPieces& out) {
  opened_.clear();
  if (++calls_ > options_.calls_max) return;
  out.calls.push_back({.index = calls_ - 1, .name = std::move(name), .arguments = {}});
}

void AnswerParser::AddArguments(std::string_view text, AnswerPieces& out) {
  if (text.empty() || calls_ > options_.calls_max) return;
  if (out.calls.empty() || out.calls.back().index != calls_ - 1) {
    out.calls.push_back({.index = calls_ - 1, .name = {}, .arguments = {}});
  }
  out.calls.back().arguments += text;
}

}  // namespace millrace::text
