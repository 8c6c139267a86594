// ChunkWriter: answers in OpenAI's form, of chats and of completions. Threads as AnswerWriter.
#pragma once

#include <string>
#include <vector>

#include "serve/answer/answer_writer.h"

namespace millrace::serve {

struct AnswerFormat {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool metrics = false;          // adds the object `metrics`
  bool prompt_logprobs = false;  // adds vLLM's field of that name to the answer
  std::string ignored;           // IgnoredHeaderValue
};

class ChunkWriter : public AnswerWriter {
 public:
  explicit ChunkWriter(AnswerFormat format) : format_(std::move(format)) {}

  Json Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) override;
  std::string Part(const ChoicePart& part, const UsageCounts& usage) override;
  std::string Done(const AnswerEnd& end) override;

 protected:
  std::string StreamError(const ApiError& error) override;

 private:
  void AppendChunk(Json choice, const ChoicePart& part, const UsageCounts& usage, std::string& out);

  const AnswerFormat format_;
  bool prompt_ids_sent_ = false;  // chats
  std::vector<bool> role_sent_;   // chats: by choice
};

}  // namespace millrace::serve
