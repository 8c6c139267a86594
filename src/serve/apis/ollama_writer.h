// OllamaWriter: answers in the form of ollama's /api/chat and /api/generate, streams as lines of
// JSON. Threads as AnswerWriter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/answer/answer_writer.h"
#include "serve/apis/ollama_api.h"

namespace millrace::serve {

class OllamaWriter : public AnswerWriter {
 public:
  OllamaWriter(OllamaRoute route, FieldNames names, std::string ignored)
      : AnswerWriter(std::move(names), std::move(ignored)), route_(route) {}

  Json Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) override;
  std::string Part(const ChoicePart& part, const UsageCounts& usage) override;
  std::string Done(const AnswerEnd& end) override;
  std::string Ping() const override { return ""; }
  const char* StreamType() const override { return "application/x-ndjson"; }

 protected:
  Json Error(const ApiError& error) const override { return OllamaError(error); }
  std::string StreamError(const ApiError& error) override;

 private:
  Json Line(const ChoicePart& part, const std::vector<CallPart>& calls) const;
  Json Last(Json line, const AnswerEnd& end) const;

  const OllamaRoute route_;
  std::vector<CallPart> calls_;  // of the stream so far, by index
  std::string finish_reason_;
};

}  // namespace millrace::serve
