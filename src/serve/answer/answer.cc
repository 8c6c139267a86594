#include "serve/answer/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/request/ignored_fields.h"

namespace millrace::serve {

Answer::Answer(AnswerFormat format, ResponseHead head, std::shared_ptr<net::HttpReply> reply)
    : format_(format), head_(std::move(head)), reply_(std::move(reply)) {}

bool Answer::Flush(std::vector<Choice>& choices, const UsageCounts& usage) {
  if (!format_.stream) return !reply_->disconnected();
  Collect(choices, usage);
  if (events_.empty()) return true;
  Start();
  return reply_->Write(std::exchange(events_, {}));
}

bool Answer::Ping() {
  Start();
  return reply_->Write(std::string(kPing));
}

void Answer::Finish(std::vector<Choice>& choices, const UsageCounts& usage,
                    const std::vector<TokenReports>& prompt_reports,
                    const std::optional<AnswerTimes>& metrics) {
  if (format_.stream) {
    Collect(choices, usage);
    if (format_.include_usage) {
      Json last =
          Envelope(head_, Fingerprints(),
                   format_.chat ? "chat.completion.chunk" : "text_completion", Json::array());
      last["usage"] = UsageJson(usage);
      if (metrics) last["metrics"] = MetricsJson(*metrics);
      AppendEvent(last, events_);
    }
    events_ += kDoneEvent;
    Start();
    reply_->Write(std::exchange(events_, {}));
    reply_->End();
    return;
  }
  Json list = Json::array();
  Json prompt_ids;
  for (size_t i = 0; i < choices.size(); ++i) {
    ChoicePart part = choices[i].Take();
    if (i == 0 && part.prompt_token_ids) prompt_ids = *part.prompt_token_ids;
    if (format_.prompt_logprobs && prompt_reports[i]) {
      part.prompt_logprobs = PromptLogprobs(*prompt_reports[i]);
    }
    list.push_back(format_.chat ? ChatChoice(part) : CompletionChoice(part));
  }
  Json body = Envelope(head_, Fingerprints(), format_.chat ? "chat.completion" : "text_completion",
                       std::move(list));
  body["usage"] = UsageJson(usage);
  if (metrics) body["metrics"] = MetricsJson(*metrics);
  if (format_.chat && !prompt_ids.is_null()) body["prompt_token_ids"] = std::move(prompt_ids);
  if (format_.chat && format_.prompt_logprobs && prompt_reports[0]) {
    body["prompt_logprobs"] = PromptLogprobs(*prompt_reports[0]);
  }
  net::HttpResponse response = JsonResponse(body);
  AddIgnoredHeader(response);
  reply_->Send(std::move(response));
}

void Answer::Fail(const ApiError& error) {
  if (!started_ && events_.empty()) return reply_->Send(ErrorResponse(error));
  AppendEvent(ErrorBody(error), events_);
  Start();
  reply_->Write(std::exchange(events_, {}));
  reply_->End();
}

void Answer::Collect(std::vector<Choice>& choices, const UsageCounts& usage) {
  if (!format_.stream) return;
  role_sent_.resize(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].HasOutput()) continue;
    const ChoicePart part = choices[i].Take();
    if (format_.chat && !role_sent_[i]) {
      AppendChunk(ChatRoleDelta(static_cast<int>(i)), part, usage);
      role_sent_[i] = true;
    }
    AppendChunk(format_.chat ? ChatDelta(part) : CompletionChoice(part), part, usage);
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

void Answer::AppendChunk(Json choice, const ChoicePart& part, const UsageCounts& usage) {
  Json chunk =
      Envelope(head_, part.fingerprint, format_.chat ? "chat.completion.chunk" : "text_completion",
               Json::array({std::move(choice)}));
  if (format_.chat && part.prompt_token_ids && part.index == 0) {
    if (!std::exchange(prompt_ids_sent_, true)) chunk["prompt_token_ids"] = *part.prompt_token_ids;
  }
  if (format_.continuous_usage) {
    chunk["usage"] = UsageJson(usage);
  } else if (format_.include_usage) {
    chunk["usage"] = nullptr;
  }
  AppendEvent(chunk, events_);
}

void Answer::Start() {
  if (started_) return;
  started_ = true;
  net::HttpResponse head = EventStreamHead();
  AddIgnoredHeader(head);
  reply_->Start(std::move(head));
}

void Answer::AddIgnoredHeader(net::HttpResponse& response) const {
  if (!format_.ignored.empty()) response.headers.emplace_back(kIgnoredHeader, format_.ignored);
}

}  // namespace millrace::serve
