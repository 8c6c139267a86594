// Test helper: an answer that is pushed through an AnswerParser, and put together again.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/answer_parser.h"

namespace millrace::text {

// Everything that an answer consists of; calls with their arguments put together.
struct Whole {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool whole_calls = false;
  std::string Text() const {
    std::string text = "reasoning: " + reasoning + "\ncontent: " + content + "\n";
    for (const ToolCall& call : calls) text += call.name + " " + call.arguments + "\n";
    if (!calls.empty() && !whole_calls) text += "broken\n";
    return text;
  }
};

class Collector {
 public:
  explicit Collector(const AnswerParserOptions& options) : parser_(options) {}

  void Push(std::string_view text) {
    AnswerPieces pieces;
    parser_.Push(text, pieces);
    Add(pieces);
  }
  Whole Finish(bool cut = false) {
    AnswerPieces pieces;
    parser_.Finish(pieces, cut);
    Add(pieces);
    whole_.whole_calls = parser_.has_whole_calls();
    return whole_;
  }

 private:
  void Add(const AnswerPieces& pieces) {
    whole_.reasoning += pieces.reasoning;
    whole_.content += pieces.content;
    for (const ToolCallDelta& delta : pieces.calls) {
      const auto index = static_cast<size_t>(delta.index);
      if (index == whole_.calls.size()) {
        EXPECT_FALSE(delta.name.empty()) << "the first delta of a call has its name";
        whole_.calls.push_back({.name = delta.name, .arguments = {}});
      } else {
        EXPECT_TRUE(delta.name.empty());
      }
      ASSERT_LT(index, whole_.calls.size());
      whole_.calls[index].arguments += delta.arguments;
    }
  }

  AnswerParser parser_;
  Whole whole_;
};

inline Whole Parse(const AnswerParserOptions& options, std::string_view text, bool cut = false) {
  Collector collector(options);
  collector.Push(text);
  return collector.Finish(cut);
}

}  // namespace millrace::text
