#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

namespace millrace::text {
namespace {

constexpr std::string_view kSpaces = " \n\r\t";

bool IsSpace(char c) { return kSpaces.find(c) != std::string_view::npos; }

}  // namespace

AnswerParser::AnswerParser(AnswerParserOptions options) : options_(std::move(options)) {
  if (options_.reasoning != nullptr) {
    if (options_.begins_in_reasoning) at_ = At::kReasoning;
    marks_.emplace_back(options_.reasoning->begin, Mark::kReasoningBegin);
    marks_.emplace_back(options_.reasoning->end, Mark::kReasoningEnd);
  }
  if (options_.tools != nullptr) {
    const ToolFormat& f = *options_.tools;
    whole_.emplace(f);
    marks_.emplace_back(f.section_begin, Mark::kBegin);
    marks_.emplace_back(f.call_begin, Mark::kBegin);
    if (unmarked()) marks_.emplace_back(kPythonTag, Mark::kBegin);
    marks_.emplace_back(f.bare_begin, Mark::kBareBegin);
    for (const std::string_view end : {f.call_end, f.section_end, f.stray_end}) {
      marks_.emplace_back(end, Mark::kEnd);
    }
  }
  std::erase_if(marks_, [](const auto& mark) { return mark.first.empty(); });
}

void AnswerParser::Push(std::string_view text, AnswerPieces& out) {
  buffer_ += text;
  while (!buffer_.empty() && Step(out)) {
  }
}

void AnswerParser::Finish(AnswerPieces& out, bool cut) {
  at_end_ = true;
  // Parts of marks, of fences, and of what comes before a name.
  const bool in_call = by_mark_ || calls_ > 0 || options_.calls_only;
  const bool in_text = at_ == At::kStart || at_ == At::kText;
  if (cut && (at_ == At::kAfterCall || (at_ == At::kOpened && in_call) ||
              (in_text && options_.calls_only))) {
    buffer_.clear();
  }
  Push("", out);
  switch (at_) {
    case At::kReasoning: out.reasoning += buffer_; break;
    case At::kStart:
    case At::kText:
    case At::kAfterCall: AddContent(buffer_, out); break;
    case At::kOpened: FinishOpened(out, cut); break;
    case At::kObject:
      if (object_.begun()) {
        if (!object_.arguments_whole()) Break();
      } else if (cut && (by_mark_ || calls_ > 0 || options_.calls_only)) {
        DropOpening();
      } else {
        NoCall(raw_, false, out);
      }
      break;
    case At::kValue: Break(); break;
    case At::kBroken: AddArguments(buffer_, out); break;
    case At::kWhole: FinishWhole(out, cut); break;
  }
  if (calls_ == 0 && !reasoning_begun_) out.content += spaces_;
  buffer_.clear();
}

bool AnswerParser::Step(AnswerPieces& out) {
  switch (at_) {
    case At::kStart: return StepStart();
    case At::kReasoning: return StepReasoning(out);
    case At::kText: return StepText(out);
    case At::kOpened: return StepOpened(out);
    case At::kObject: return StepObject(out);
    case At::kValue: return StepValue(out);
    case At::kWhole: return StepWhole(out);
    case At::kBroken: return StepBroken(out);
    case At::kAfterCall: return StepAfterCall();
  }
  return false;
}

bool AnswerParser::MayBegin(std::string_view token) const {
  return !at_end_ && buffer_.size() < token.size() && token.starts_with(buffer_);
}

// Decides what an answer begins with.
bool AnswerParser::StepStart() {
  const size_t first = buffer_.find_first_not_of(kSpaces);
  if (first == std::string::npos) return false;
  if (options_.reasoning != nullptr) {
    const std::string_view here = std::string_view(buffer_).substr(first);
    for (const std::string_view token : {options_.reasoning->begin, options_.reasoning->end}) {
      const bool begins = token == options_.reasoning->begin;
      if (begins && reasoning_over_) continue;
      if (!at_end_ && here.size() < token.size() && token.starts_with(here)) return false;
      if (!here.starts_with(token)) continue;
      buffer_.erase(0, first + token.size());
      if (begins) {
        at_ = At::kReasoning;
      } else {  // an end without a beginning: the content is next
        reasoning_begun_ = reasoning_over_ = true;
      }
      return true;
    }
  }
  if (reasoning_begun_) buffer_.erase(0, first);
  if (options_.tools != nullptr && unmarked()) return StepStartOfCalls();
  at_ = At::kText;
  return true;
}

// The format has no mark of its own: the answer begins with calls, or has none.
bool AnswerParser::StepStartOfCalls() {
  const size_t first = buffer_.find_first_not_of(kSpaces);
  const std::string_view here = std::string_view(buffer_).substr(first);
  const bool python = options_.tools->syntax == CallSyntax::kPython;
  at_ = At::kText;
  if (here[0] == '[' || (here[0] == '{' && !python)) {
    Open(std::string_view(buffer_).substr(0, first), false);
    buffer_.erase(0, first);
  }
  return true;
}

bool AnswerParser::StepReasoning(AnswerPieces& out) {
  const std::string_view end = options_.reasoning->end;
  if (!reasoning_begun_) {
    const size_t first = buffer_.find_first_not_of(kSpaces);
    if (first == std::string::npos) return false;
    buffer_.erase(0, first);
    // The template has opened it, and the model opens it again.
    if (MayBegin(options_.reasoning->begin)) return false;
    reasoning_begun_ = true;
    if (buffer_.starts_with(options_.reasoning->begin)) {
      buffer_.erase(0, options_.reasoning->begin.size());
      reasoning_begun_ = false;
      return true;
    }
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
  if (text.empty()) return;
  last_ = text.back();
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
  if (trim_) {
    buffer_.erase(0, std::min(buffer_.find_first_not_of(kSpaces), buffer_.size()));
    if (buffer_.empty()) return false;
    trim_ = false;
  }
  if (const auto found = FindMark()) return TakeMark(*found, out);
  size_t settled = buffer_.size();
  if (!at_end_) {
    for (const auto& [token, mark] : marks_) settled = std::min(settled, Settled(buffer_, token));
  }
  AddContent(std::string_view(buffer_).substr(0, settled), out);
  buffer_.erase(0, settled);
  return false;
}

// The first one in the buffer.
std::optional<AnswerParser::Found> AnswerParser::FindMark() const {
  std::optional<Found> first;
  for (const auto& [token, mark] : marks_) {
    const size_t at = buffer_.find(token);
    if (at != std::string::npos && (!first || at < first->at)) first = Found{at, token, mark};
  }
  return first;
}

// Whether a text is about the mark: it is quoted.
bool AnswerParser::IsWrittenAbout(const Found& found) const {
  constexpr std::string_view kQuotes = "`'\"";
  const auto quote = [&](char c) { return c != 0 && kQuotes.find(c) != std::string_view::npos; };
  const size_t after = found.at + found.token.size();
  return quote(found.at > 0 ? buffer_[found.at - 1] : last_) ||
         (after < buffer_.size() && quote(buffer_[after]));
}

bool AnswerParser::TakeMark(const Found& found, AnswerPieces& out) {
  const size_t after = found.at + found.token.size();
  const std::string_view until = std::string_view(buffer_).substr(0, after);
  bool content = false;
  switch (found.mark) {
    case Mark::kBegin:
    case Mark::kBareBegin: {
      AddContent(until.substr(0, found.at), out);
      const bool bare = found.mark == Mark::kBareBegin;
      Open(std::exchange(spaces_, {}).append(bare ? "" : found.token), true);
      buffer_.erase(0, bare ? found.at : after);
      return true;
    }
    case Mark::kReasoningBegin: content = reasoning_in_text_ = true; break;
    case Mark::kReasoningEnd: content = std::exchange(reasoning_in_text_, false); break;
    case Mark::kEnd: {
      content = keeps_ends_;
      const ToolFormat& f = *options_.tools;
      if (found.token == (f.section_end.empty() ? f.call_end : f.section_end)) keeps_ends_ = false;
      break;
    }
  }
  if (!content) {  // an end without a beginning
    if (after == buffer_.size() && !at_end_) {
      AddContent(until.substr(0, found.at), out);
      buffer_.erase(0, found.at);
      return false;  // what follows tells whether the text is about it
    }
    content = IsWrittenAbout(found);
  }
  AddContent(content ? until : until.substr(0, found.at), out);
  buffer_.erase(0, after);
  return true;
}

}  // namespace millrace::text
