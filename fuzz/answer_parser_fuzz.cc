// The pieces of an answer do not depend on how its text is cut, whatever the text is. Calls that
// are announced as whole have arguments that are JSON objects, and a text without calls is content.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/answer_parser.h"

namespace {

using namespace millrace::text;

struct FuzzedAnswer {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  bool whole_calls = false;

  std::string Text() const {
    std::string text = content + "\n---\n" + reasoning + "\n---\n" + (whole_calls ? "whole" : "");
    for (const ToolCall& call : calls) text += "\n" + call.name + " " + call.arguments;
    return text;
  }
};

FuzzedAnswer Parsed(const AnswerParserOptions& options, std::string_view text, size_t piece,
                    bool cut) {
  AnswerParser parser(options);
  FuzzedAnswer answer;
  const auto add = [&](const AnswerPieces& pieces) {
    answer.content += pieces.content;
    answer.reasoning += pieces.reasoning;
    for (const ToolCallDelta& delta : pieces.calls) {
      const auto index = static_cast<size_t>(delta.index);
      MR_CHECK((index == answer.calls.size()) == !delta.name.empty())
          << "a call begins with its name";
      if (!delta.name.empty()) answer.calls.push_back({.name = delta.name, .arguments = {}});
      MR_CHECK(index < answer.calls.size());
      answer.calls[index].arguments += delta.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    AnswerPieces pieces;
    parser.Push(text.substr(at, piece), pieces);
    add(pieces);
  }
  AnswerPieces pieces;
  parser.Finish(pieces, cut);
  add(pieces);
  answer.whole_calls = parser.has_whole_calls();
  return answer;
}

// As the calls of a client that parses JSON strictly. What is no UTF-8 does not come from a model.
bool IsObject(std::string arguments) {
  for (char& c : arguments) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return MendedObject(arguments) == arguments;
}

std::string WithoutSpaces(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
  return text;
}

}  // namespace

// The first byte chooses the formats, the second one the size of the pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  AnswerParserOptions options;
  options.tools = &ToolFormats()[data[0] % ToolFormats().size()];
  options.reasoning = data[0] >= 128 ? &ReasoningFormats()[data[0] % 4] : nullptr;
  options.begins_in_reasoning = data[1] >= 128;
  const bool cut = (data[1] & 64) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  const FuzzedAnswer whole = Parsed(options, text, text.size() + 1, cut);
  MR_CHECK(Parsed(options, text, data[1] % 16 + 1, cut).Text() == whole.Text())
      << "pieces of another size";
  if (whole.whole_calls) {
    MR_CHECK(std::ranges::all_of(whole.calls, [](const ToolCall& call) {
      return IsObject(call.arguments);
    })) << whole.Text();
  }
  const bool marked = std::ranges::any_of(
      MarkersOf(options.tools, options.reasoning),
      [&](std::string_view mark) { return text.find(mark) != std::string_view::npos; });
  if (!marked && !cut && whole.calls.empty()) {
    MR_CHECK(WithoutSpaces(whole.content + whole.reasoning) == WithoutSpaces(std::string(text)))
        << "nothing is lost";
  }
  return 0;
}
