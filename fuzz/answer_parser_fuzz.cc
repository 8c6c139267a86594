// The pieces of an answer do not depend on how its text is cut, whatever the text is.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/answer_parser.h"

namespace {

using namespace millrace::text;

std::string Parsed(const AnswerParserOptions& options, std::string_view text, size_t piece) {
  AnswerParser parser(options);
  std::string content, reasoning, calls;
  int named = 0;
  const auto add = [&](const AnswerPieces& pieces) {
    content += pieces.content;
    reasoning += pieces.reasoning;
    for (const ToolCallDelta& delta : pieces.calls) {
      MR_CHECK((delta.index == named) == !delta.name.empty()) << "a call begins with its name";
      if (delta.index == named) calls += "\n" + std::to_string(named++) + " " + delta.name + " ";
      calls += delta.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    AnswerPieces pieces;
    parser.Push(text.substr(at, piece), pieces);
    add(pieces);
  }
  AnswerPieces pieces;
  parser.Finish(pieces);
  add(pieces);
  return content + "\n---\n" + reasoning + "\n---\n" + calls;
}

}  // namespace

// The first byte chooses the formats, the second one the size of the pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  AnswerParserOptions options;
  options.tools = &ToolFormats()[data[0] % ToolFormats().size()];
  options.reasoning = data[0] >= 128 ? &ReasoningFormats()[data[0] % 4] : nullptr;
  options.begins_in_reasoning = data[1] >= 128;
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  const std::string whole = Parsed(options, text, text.size() + 1);
  MR_CHECK(Parsed(options, text, data[1] % 16 + 1) == whole) << "pieces of another size";
  return 0;
}
