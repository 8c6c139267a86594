#include "apps/commands/answer_printer.h"

#include <string>

namespace millrace::apps {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kPlain = "\x1b[0m";

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

void AnswerPrinter::Put(std::string_view text) {
  if (text.empty()) return;
  write_(text);
  at_line_begin_ = text.back() == '\n';
}

void AnswerPrinter::Enter(Part part) {
  if (part == part_) return;
  if (part_ == Part::kReasoning) {
    if (style_.dim) write_(kPlain);
    if (!at_line_begin_) Put("\n");
    Put(style_.dim ? "\n" : "</think>\n\n");
  } else if (part_ != Part::kNothing && !at_line_begin_) {
    Put("\n");
  }
  part_ = part;
  if (part == Part::kReasoning) {
    if (style_.dim) {
      write_(kDim);
    } else {
      Put("<think>\n");
    }
  }
}

void AnswerPrinter::Calls(const Json& calls) {
  for (const Json& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    if (const std::string name = TextOf(call["function"], "name"); !name.empty()) {
      if (!at_line_begin_) Put("\n");
      Put("[call of " + name + "] ");
    }
    Put(TextOf(call["function"], "arguments"));
  }
}

void AnswerPrinter::Delta(const Json& delta) {
  if (!delta.is_object()) return;
  const std::string reasoning = TextOf(delta, "reasoning_content");
  if (!reasoning.empty() && style_.reasoning) {
    Enter(Part::kReasoning);
    Put(reasoning);
  }
  if (const std::string content = TextOf(delta, "content"); !content.empty()) {
    Enter(Part::kContent);
    Put(content);
  }
  if (delta.contains("tool_calls") && delta["tool_calls"].is_array()) {
    Enter(Part::kCalls);
    Calls(delta["tool_calls"]);
  }
}

void AnswerPrinter::End() {
  if (part_ == Part::kReasoning) {
    Enter(Part::kNothing);
  } else {
    Put("\n");
  }
}

}  // namespace millrace::apps
