#include "serve/answer/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::serve {

Answer::Answer(AnswerFormat format, ResponseHead head, std::shared_ptr<net::HttpReply> reply,
               std::shared_ptr<AnswerWriter> writer)
    : format_(std::move(format)),
      reply_(std::move(reply)),
      writer_(writer ? std::move(writer) : std::make_shared<ChunkWriter>(format_)) {
  writer_->SetHead(std::move(head));
}

bool Answer::Flush(std::vector<Choice>& choices, const UsageCounts& usage) {
  if (!format_.stream) return !reply_->disconnected();
  Collect(choices, usage);
  return !collected_ || WriteEvents();
}

bool Answer::WriteEvents() {
  Start();
  collected_ = false;
  return events_.empty() ? !reply_->disconnected() : reply_->Write(std::exchange(events_, {}));
}

bool Answer::Ping() {
  Start();
  std::string ping = writer_->Ping();
  return ping.empty() ? !reply_->disconnected() : reply_->Write(std::move(ping));
}

void Answer::Finish(std::vector<Choice>& choices, const UsageCounts& usage,
                    const std::vector<TokenReports>& prompt_reports,
                    const std::optional<AnswerTimes>& metrics) {
  const AnswerEnd end{.usage = usage, .times = metrics, .fingerprints = Fingerprints()};
  if (format_.stream) {
    Collect(choices, usage);
    events_ += writer_->Done(end);
    WriteEvents();
    return reply_->End();
  }
  std::vector<ChoicePart> parts;
  for (size_t i = 0; i < choices.size(); ++i) {
    ChoicePart& part = parts.emplace_back(choices[i].Take());
    if (format_.prompt_logprobs && prompt_reports[i]) {
      part.prompt_logprobs = PromptLogprobs(*prompt_reports[i]);
    }
  }
  net::HttpResponse response = JsonResponse(writer_->Whole(std::move(parts), end));
  writer_->AddIgnored(response, format_.ignored);
  reply_->Send(std::move(response));
}

void Answer::Fail(const ApiError& error) {
  if (!started_ && !collected_) return reply_->Send(writer_->Refusal(error));
  events_ += writer_->Failure(error);
  WriteEvents();
  reply_->End();
}

void Answer::Collect(std::vector<Choice>& choices, const UsageCounts& usage) {
  if (!format_.stream) return;
  for (Choice& choice : choices) {
    if (!choice.HasOutput()) continue;
    events_ += writer_->Part(choice.Take(), usage);
    collected_ = true;
  }
}

void Answer::AddFingerprint(const std::string& fingerprint) {
  if (std::ranges::find(fingerprints_, fingerprint) == fingerprints_.end()) {
    fingerprints_.push_back(fingerprint);
  }
}

std::string Answer::Fingerprints() const {
  return fmt::format("{}", fmt::join(fingerprints_, "+"));
}

void Answer::Start() {
  if (started_) return;
  started_ = true;
  net::HttpResponse head = EventStreamHead(writer_->StreamType());
  writer_->AddIgnored(head, format_.ignored);
  reply_->Start(std::move(head));
}

}  // namespace millrace::serve
