#include "serve/answer/chunk_writer.h"

#include <algorithm>
#include <utility>

namespace millrace::serve {

Json ChunkWriter::Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) {
  Json list = Json::array();
  for (const ChoicePart& part : choices) {
    list.push_back(format_.chat ? ChatChoice(part) : CompletionChoice(part));
  }
  Json body = Envelope(head(), end.fingerprints,
                       format_.chat ? "chat.completion" : "text_completion", std::move(list));
  body["usage"] = UsageJson(end.usage);
  if (end.times) body["metrics"] = MetricsJson(*end.times);
  ChoicePart& first = choices.front();
  if (format_.chat && first.prompt_token_ids) body["prompt_token_ids"] = *first.prompt_token_ids;
  if (format_.chat && !first.prompt_logprobs.is_null()) {
    body["prompt_logprobs"] = std::move(first.prompt_logprobs);
  }
  return body;
}

std::string ChunkWriter::Part(const ChoicePart& part, const UsageCounts& usage) {
  std::string out;
  if (format_.chat) {
    const auto index = static_cast<size_t>(part.index);
    role_sent_.resize(std::max(role_sent_.size(), index + 1));
    if (!role_sent_[index]) AppendChunk(ChatRoleDelta(part.index), part, usage, out);
    role_sent_[index] = true;
  }
  AppendChunk(format_.chat ? ChatDelta(part) : CompletionChoice(part), part, usage, out);
  return out;
}

std::string ChunkWriter::Done(const AnswerEnd& end) {
  std::string out;
  if (format_.include_usage) {
    Json last = Envelope(head(), end.fingerprints,
                         format_.chat ? "chat.completion.chunk" : "text_completion", Json::array());
    last["usage"] = UsageJson(end.usage);
    if (end.times) last["metrics"] = MetricsJson(*end.times);
    AppendEvent(last, out);
  }
  out += kDoneEvent;
  return out;
}

std::string ChunkWriter::StreamError(const ApiError& error) {
  std::string out;
  AppendEvent(ErrorBody(error), out);
  return out;
}

// A chunk with `choice`, which is of `part`.
void ChunkWriter::AppendChunk(Json choice, const ChoicePart& part, const UsageCounts& usage,
                              std::string& out) {
  Json chunk =
      Envelope(head(), part.fingerprint, format_.chat ? "chat.completion.chunk" : "text_completion",
               Json::array({std::move(choice)}));
  if (format_.chat && part.prompt_token_ids && part.index == 0) {
    if (!std::exchange(prompt_ids_sent_, true)) chunk["prompt_token_ids"] = *part.prompt_token_ids;
  }
  if (format_.continuous_usage) {
    chunk["usage"] = UsageJson(usage);
  } else if (format_.include_usage) {
    chunk["usage"] = nullptr;
  }
  AppendEvent(chunk, out);
}

}  // namespace millrace::serve
