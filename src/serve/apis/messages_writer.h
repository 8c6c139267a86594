// MessagesWriter: answers in the form of Anthropic's Messages API. Threads as AnswerWriter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/answer/answer_writer.h"

namespace millrace::serve {

class MessagesWriter : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  Json Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) override;
  std::string Part(const ChoicePart& part, const UsageCounts& usage) override;
  std::string Done(const AnswerEnd& end) override;
  std::string Ping() const override;

 protected:
  Json Error(const ApiError& error) const override;
  std::string StreamError(const ApiError& error) override;

 private:
  enum class Block { kNone, kText, kThinking, kToolUse };
  Json Message(Json content, std::pair<Json, Json> stop, const UsageCounts& usage) const;
  std::string Begin(const UsageCounts& usage);
  std::string Open(Block block, Json content);
  std::string Close();
  std::string AddText(Block block, const std::string& text);
  std::string AddCall(const CallPart& call);
  int index() const { return blocks_ - 1; }  // of the newest block

  bool begun_ = false;
  Block block_ = Block::kNone;  // that is open
  int blocks_ = 0;              // that have been opened
  int call_ = 0;                // kToolUse: of the answer's calls, the one that is open
  std::string finish_reason_;
  Json stop_reason_;
};

}  // namespace millrace::serve
