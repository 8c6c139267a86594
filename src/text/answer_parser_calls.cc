// AnswerParser within calls: from what begins them until the text goes on.
#include <algorithm>
#include <array>
#include <utility>

#include "text/answer_parser.h"

namespace millrace::text {
namespace {

constexpr std::string_view kBlanks = " \n\r\t";
constexpr std::string_view kFence = "```";
constexpr std::string_view kJsonFence = "```json";

bool IsBlankChar(char c) { return kBlanks.find(c) != std::string_view::npos; }

std::string_view FromFirst(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text;
}

bool IsBlankText(std::string_view text) { return FromFirst(text).empty(); }

}  // namespace

void AnswerParser::Open(std::string_view text, bool by_mark) {
  opened_ = text;
  by_mark_ = by_mark;
  keeps_ends_ = fenced_ = false;
  const CallSyntax syntax = options_.tools->syntax;
  const bool json = syntax == CallSyntax::kJson || syntax == CallSyntax::kNameThenJson;
  at_ = json ? At::kOpened : At::kWhole;
  if (whole_) whole_->Reset();
}

void AnswerParser::Skip(size_t size) {
  if (opened_) opened_->append(buffer_, 0, size);
  buffer_.erase(0, size);
}

void AnswerParser::DropOpening() {
  const std::string opened = *std::exchange(opened_, std::nullopt);
  spaces_ += opened.substr(0, std::min(opened.find_first_not_of(kBlanks), opened.size()));
  at_ = At::kText;
}

void AnswerParser::NoCall(std::string_view text, bool ends, AnswerPieces& out) {
  keeps_ends_ = by_mark_ && !ends;
  trim_ = false;
  AddContent(std::exchange(opened_, std::nullopt).value_or("").append(text), out);
  at_ = At::kText;
}

bool AnswerParser::StepOpened(AnswerPieces& out) {
  if (!SkipToCall()) return false;
  if (at_ != At::kOpened) return true;
  if (buffer_[0] == '{' && options_.tools->syntax == CallSyntax::kJson) {
    object_ = CallObject();
    raw_.clear();
    at_ = At::kObject;
    return true;
  }
  if (!options_.tools->name_end.empty()) return StepName(out);
  NoCall("", false, out);
  return true;
}

// Skips what may precede a call. False: more text is needed to know. Leaves At::kOpened if there is
// none.
bool AnswerParser::SkipToCall() {
  const ToolFormat& f = *options_.tools;
  for (;;) {
    while (!buffer_.empty() && IsBlankChar(buffer_[0])) Skip(1);
    if (buffer_.empty()) return false;
    std::string_view skipped;
    for (const std::string_view token : {f.section_begin, f.call_begin, kJsonFence, kFence,
                                         f.call_end, f.section_end, f.stray_end}) {
      if (token.empty()) continue;
      if (MayBegin(token)) return false;
      if (skipped.empty() && buffer_.starts_with(token)) skipped = token;
    }
    const bool list = f.syntax == CallSyntax::kJson && buffer_[0] == '[';
    if (list && skipped.empty()) {
      Skip(1);
    } else if (skipped.empty()) {
      // A list without a call.
      const bool empty =
          f.syntax == CallSyntax::kJson && by_mark_ && buffer_[0] == ']' && opened_->ends_with('[');
      if (!empty) return true;
      Skip(1);
      DropOpening();
      return true;
    } else {
      const bool ends = skipped == f.section_end || skipped == f.stray_end ||
                        (skipped == f.call_end && one_call_per_section());
      if (ends && !opened_only_marks()) return true;
      Skip(skipped.size());
      if (skipped.starts_with(kFence)) fenced_ = true;
      if (!ends) continue;
      DropOpening();
      return true;
    }
  }
}

// A name, its end, and where the arguments begin.
bool AnswerParser::StepName(AnswerPieces& out) {
  const ToolFormat& f = *options_.tools;
  std::string_view rest = buffer_;
  if (MayBegin(f.name_begin)) return false;
  std::string_view name_end = f.name_end;
  if (!f.name_begin.empty() && rest.starts_with(f.name_begin)) {
    rest.remove_prefix(f.name_begin.size());
    // DeepSeek V3 writes the kind before the name, and a fence after it.
    if (f.name_begin.ends_with(f.name_end)) name_end = "\n";
  }
  const bool json = f.syntax == CallSyntax::kJson;  // Mistral leaves the end out, too
  const size_t end = std::min(rest.find(name_end), json ? rest.find('{') : std::string::npos);
  // Without what may be the beginning of the end.
  std::string_view region =
      rest.substr(0, end == std::string_view::npos ? Settled(rest, name_end) : end);
  while (!region.empty() && IsBlankChar(region.back())) region.remove_suffix(1);
  const std::string_view name = region.substr(0, region.find_first_of("<["));
  // What the region begins with decides, so that it does not matter how much of it has come.
  const bool sound = region.size() < kCallNameBytesMax && (region.empty() || IsBareName(name)) &&
                     region.find_first_of(kBlanks) == std::string_view::npos;
  if (end == std::string_view::npos) {
    if (!sound) NoCall("", false, out);
    return !sound;
  }
  std::string_view called = name;
  if (f.ids == CallIds::kNumbered) called = called.substr(0, called.rfind(':'));
  if (!sound || called.empty()) {
    NoCall("", false, out);
    return true;
  }
  const bool left_out = json && rest[end] == '{';
  return BeginNamed(std::string(called), rest.substr(left_out ? end : end + name_end.size()), out);
}

bool AnswerParser::BeginNamed(std::string name, std::string_view value, AnswerPieces& out) {
  value = FromFirst(value);
  bool fenced = false;
  for (const std::string_view fence : {kJsonFence, kFence}) {
    if (!at_end_ && value.size() < fence.size() && fence.starts_with(value)) return false;
    if (fenced || !value.starts_with(fence)) continue;
    value = FromFirst(value.substr(fence.size()));
    fenced = true;
  }
  const std::string_view call_end = options_.tools->call_end;
  if (value.empty() ||
      (!at_end_ && value.size() < call_end.size() && call_end.starts_with(value))) {
    return false;
  }
  const bool none = !call_end.empty() && value.starts_with(call_end);
  const std::string_view inner = value[0] == '{' ? FromFirst(value.substr(1)) : "";
  if (!none && value[0] == '{' && inner.empty()) return false;
  if (!none && !inner.starts_with('"') && !inner.starts_with('}')) {
    NoCall("", false, out);
    return true;
  }
  fenced_ = fenced;
  buffer_ = std::string(value);
  Begin(std::move(name), out);
  if (none) AddArguments("{}", out);
  value_ = JsonScanner();
  at_ = none ? At::kAfterCall : At::kValue;
  return true;
}

bool AnswerParser::StepObject(AnswerPieces& out) {
  std::string arguments;
  size_t taken = 0;
  auto step = JsonScanner::Step::kMore;
  const bool begun = object_.begun();
  while (taken < buffer_.size() && step == JsonScanner::Step::kMore) {
    step = object_.Take(buffer_[taken], arguments);
    if (step != JsonScanner::Step::kBad) ++taken;
  }
  if (!begun) raw_.append(buffer_, 0, taken);
  buffer_.erase(0, taken);
  const bool named_only = step == JsonScanner::Step::kDone && !object_.has_arguments();
  const bool no_call = step == JsonScanner::Step::kBad
                           ? !object_.begun()
                           : named_only && !by_mark_ && !IsKnownTool(object_.name());
  if (no_call) {
    NoCall(raw_, false, out);
    return true;
  }
  if (!begun && object_.begun()) Begin(object_.name(), out);
  if (object_.begun()) AddArguments(arguments, out);
  if (step == JsonScanner::Step::kMore) return false;
  at_ = At::kAfterCall;
  if (step == JsonScanner::Step::kBad && !object_.arguments_whole()) {
    AddArguments(object_.Held(), out);
    Break();
  }
  return true;
}

bool AnswerParser::StepValue(AnswerPieces& out) {
  std::string written;
  size_t taken = 0;
  auto step = JsonScanner::Step::kMore;
  while (taken < buffer_.size() && step == JsonScanner::Step::kMore) {
    step = value_.Take(buffer_[taken], written);
    if (step != JsonScanner::Step::kBad) ++taken;
  }
  if (step == JsonScanner::Step::kBad) written += value_.Held();
  AddArguments(written, out);
  buffer_.erase(0, taken);
  if (step == JsonScanner::Step::kMore) return false;
  at_ = At::kAfterCall;
  if (step == JsonScanner::Step::kBad) Break();
  return true;
}

// The rest of a call that cannot be taken back: its client sees what the model wrote.
bool AnswerParser::StepBroken(AnswerPieces& out) {
  const ToolFormat& f = *options_.tools;
  size_t end = buffer_.size(), settled = buffer_.size();
  for (const std::string_view token : {f.call_end, f.section_end, f.section_begin}) {
    if (token.empty()) continue;
    end = std::min(end, buffer_.find(token));
    settled = std::min(settled, Settled(buffer_, token));
  }
  const bool ends = end < buffer_.size();
  const size_t taken = ends || at_end_ ? end : settled;
  AddArguments(std::string_view(buffer_).substr(0, taken), out);
  buffer_.erase(0, taken);
  if (ends) at_ = At::kAfterCall;
  return ends;
}

// Skips what may follow a call, until another one or content.
bool AnswerParser::StepAfterCall() {
  const ToolFormat& f = *options_.tools;
  for (;;) {
    buffer_.erase(0, buffer_.size() - FromFirst(buffer_).size());
    if (buffer_.empty()) return false;
    std::string_view next;
    for (const std::string_view token : {f.section_begin, f.call_begin, f.call_end, f.section_end,
                                         f.stray_end, fenced_ ? kFence : std::string_view()}) {
      if (token.empty()) continue;
      if (MayBegin(token)) return false;
      if (buffer_.starts_with(token)) next = token;
    }
    if (next.empty()) {
      if (f.syntax != CallSyntax::kJson) break;
      if (buffer_[0] == '{') {
        Open("", by_mark_);
        return true;
      }
      if (buffer_[0] == ',' || buffer_[0] == ';') {
        const std::string_view after = FromFirst(std::string_view(buffer_).substr(1));
        if (after.empty() && !at_end_) return false;
        if (!after.empty() && after[0] != '{') break;
      } else if (buffer_[0] != ']' && buffer_[0] != '}') {
        break;
      }
      buffer_.erase(0, 1);
      continue;
    }
    if (next == f.section_begin || next == f.call_begin) {
      Open(next, true);
      buffer_.erase(0, next.size());
      return true;
    }
    buffer_.erase(0, next.size());
    if (next == kFence) fenced_ = false;
    if (next == f.section_end || next == f.stray_end || one_call_per_section()) break;
  }
  EndCalls();
  return true;
}

// What began the calls is still in the buffer.
bool AnswerParser::opened_bare() const {
  return !options_.tools->bare_begin.empty() && opened_ && IsBlankText(*opened_);
}

bool AnswerParser::StepWhole(AnswerPieces& out) {
  const ToolFormat& f = *options_.tools;
  const std::optional<bool> begins = whole_->Begins(buffer_);
  const std::string_view here = FromFirst(buffer_);
  const std::string_view end = whole_->end();
  if (!end.empty() && here.starts_with(end)) {  // nothing is between the marks
    buffer_ = std::string(here.substr(end.size()));
    DropOpening();
    return true;
  }
  const bool may_be_empty = !end.empty() && end.starts_with(here);
  if (begins == false && !may_be_empty) {
    const std::string own = buffer_.substr(0, opened_bare() ? f.bare_begin.size() : 0);
    buffer_.erase(0, own.size());
    NoCall(own, false, out);
    return true;
  }
  const std::optional<size_t> size = whole_->FindEnd(buffer_, opened_bare(), options_.schemas);
  if (!size) return false;
  const std::string text = buffer_.substr(0, *size);
  std::string_view inner = text;
  if (!end.empty() && inner.ends_with(end)) inner.remove_suffix(end.size());
  buffer_.erase(0, *size);
  ParsedCalls parsed = whole_->Parse(inner, true, options_.schemas);
  if (!parsed.whole) {
    NoCall(text, true, out);
    return true;
  }
  for (ToolCall& call : parsed.calls) {
    Begin(std::move(call.name), out);
    AddArguments(call.arguments, out);
  }
  EndCalls();
  return true;
}

bool AnswerParser::IsKnownTool(const std::string& name) const {
  return std::ranges::any_of(options_.schemas, [&name](const OrderedJson& tool) {
    const OrderedJson& function = tool.contains("function") ? tool["function"] : tool;
    return function.is_object() && function.value("name", OrderedJson()) == OrderedJson(name);
  });
}

bool AnswerParser::opened_only_marks() const {
  std::string rest = *opened_;
  for (const auto& [token, mark] : marks_) {
    for (size_t at = 0; (at = rest.find(token, at)) != std::string::npos;) {
      rest.erase(at, token.size());
    }
  }
  return IsBlankText(rest);
}

void AnswerParser::FinishOpened(AnswerPieces& out, bool cut) {
  if (cut && (by_mark_ || calls_ > 0 || options_.calls_only)) return DropOpening();
  if (by_mark_ && IsBlankText(buffer_) && opened_only_marks()) return DropOpening();
  NoCall(buffer_, false, out);
}

void AnswerParser::FinishWhole(AnswerPieces& out, bool cut) {
  if (!by_mark_ && !cut) return NoCall(buffer_, false, out);
  ParsedCalls parsed = whole_->Parse(buffer_, !cut, options_.schemas);
  if (!by_mark_) {  // a text that is cut is calls if it has names of tools
    const auto unknown = [this](const ToolCall& call) { return !IsKnownTool(call.name); };
    const bool none = parsed.calls.empty() && !parsed.open;
    if (none || std::ranges::any_of(parsed.calls, unknown) ||
        (parsed.open && unknown(*parsed.open))) {
      if (options_.calls_only) return DropOpening();
      return NoCall(buffer_, false, out);
    }
  }
  if (!cut && !parsed.whole && !IsBlankText(buffer_)) return NoCall(buffer_, false, out);
  if (parsed.calls.empty() && !parsed.open) return DropOpening();
  for (ToolCall& call : parsed.calls) {
    Begin(std::move(call.name), out);
    AddArguments(call.arguments, out);
  }
  if (!parsed.open) return;
  Begin(std::move(parsed.open->name), out);
  AddArguments(parsed.open->arguments, out);
  Break();
}

void AnswerParser::Begin(std::string name, AnswerPieces& out) {
  opened_.reset();
  keeps_ends_ = false;
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

void AnswerParser::Break() {
  if (calls_ <= options_.calls_max) broken_ = true;
  at_ = At::kBroken;
}

void AnswerParser::EndCalls() {
  at_ = At::kText;
  trim_ = true;
}

}  // namespace millrace::text
