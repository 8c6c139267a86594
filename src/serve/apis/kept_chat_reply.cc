#include "serve/apis/kept_chat_reply.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

std::string TextOr(const Json& object, const char* name) {
  const Json value = object.value(name, Json());
  return value.is_string() ? value.get<std::string>() : "";
}

// The reverse of ErrorBody.
ApiError ErrorOf(const Json& error, int status) {
  return {.status = status,
          .message = TextOr(error, "message"),
          .type = TextOr(error, "type"),
          .param = TextOr(error, "param"),
          .code = TextOr(error, "code"),
          .retry_after_s = {}};
}

TokenAlternative TokenOf(const Json& token) {
  TokenAlternative read;
  read.logprob = token["logprob"].get<float>();
  for (const Json& byte : token["bytes"]) read.bytes += static_cast<char>(byte.get<int>());
  return read;
}

// The reverse of ChatDelta.
ChoicePart PartOf(const Json& choice) {
  const Json& delta = choice["delta"];
  ChoicePart part;
  part.text = TextOr(delta, "content");
  part.reasoning = TextOr(delta, "reasoning_content");
  part.finish_reason = TextOr(choice, "finish_reason");
  part.stop_reason = choice.value("stop_reason", Json());
  for (const Json& call : delta.value("tool_calls", Json::array())) {
    part.calls.push_back({.index = call["index"].get<int>(),
                          .id = TextOr(call, "id"),
                          .name = TextOr(call["function"], "name"),
                          .arguments = TextOr(call["function"], "arguments")});
  }
  part.has_logprobs = choice["logprobs"].is_object();
  if (!part.has_logprobs) return part;
  for (const Json& token : choice["logprobs"]["content"]) {
    TokenReport& report = part.logprobs.emplace_back();
    report.chosen = TokenOf(token);
    for (const Json& other : token["top_logprobs"]) report.top.push_back(TokenOf(other));
  }
  return part;
}

// The reverse of UsageJson.
UsageCounts UsageOf(const Json& usage) {
  const auto count = [](const Json& object, const char* name) {
    return object.value(name, int64_t{0});
  };
  return {.prompt_tokens = count(usage, "prompt_tokens"),
          .completion_tokens = count(usage, "completion_tokens"),
          .cached_tokens = count(usage["prompt_tokens_details"], "cached_tokens"),
          .reasoning_tokens =
              count(usage.value("completion_tokens_details", Json::object()), "reasoning_tokens")};
}

// The reverse of MetricsJson.
AnswerTimes TimesOf(const Json& metrics) {
  const auto time = [&](const char* name) {
    return Duration{std::llround(metrics.value(name, 0.0) * 1e9)};
  };
  return {.ttft = time("ttft_s"),
          .e2e = time("e2e_s"),
          .phases = {.queue = time("queue_s"),
                     .prefill = time("prefill_s"),
                     .hold = time("hold_s"),
                     .transfer = time("transfer_s"),
                     .decode = time("decode_s")}};
}

}  // namespace

KeptChatReply::KeptChatReply(std::shared_ptr<net::HttpReply> inner,
                             std::shared_ptr<AnswerWriter> writer)
    : inner_(std::move(inner)),
      writer_(std::move(writer)),
      parser_([this](std::string_view, std::string_view data) { TakeEvent(data); }) {}

void KeptChatReply::Send(net::HttpResponse response) {
  const Json body = Json::parse(response.body, nullptr, false);
  MR_CHECK(body.is_object()) << "an error that is not JSON";
  writer_->Refuse(ErrorOf(body["error"], response.status), response);
  inner_->Send(std::move(response));
}

void KeptChatReply::Start(net::HttpResponse head) {
  std::string ignored;
  for (auto& [name, value] : head.headers) {
    if (name == "content-type") value = writer_->StreamType();
    if (name == kIgnoredHeader) ignored = value;
  }
  std::erase_if(head.headers, [](const auto& header) { return header.first == kIgnoredHeader; });
  writer_->AddIgnored(head, ignored);
  inner_->Start(std::move(head));
}

bool KeptChatReply::Write(std::string part) {
  if (part == kPing) {
    out_ = writer_->Ping();
  } else {
    const Status fed = parser_.Feed(part);
    MR_CHECK(fed.ok()) << fed.ToString();
  }
  return out_.empty() ? !inner_->disconnected() : inner_->Write(std::exchange(out_, {}));
}

void KeptChatReply::TakeEvent(std::string_view data) {
  if (data == "[DONE]") {
    out_ += writer_->Done(end_);
    return;
  }
  const Json chunk = Json::parse(data, nullptr, false);
  MR_CHECK(chunk.is_object()) << "an event that is not JSON";
  if (chunk.contains("error")) {
    out_ += writer_->Failure(ErrorOf(chunk["error"], 500));
    return;
  }
  writer_->SetHead({.id = TextOr(chunk, "id"),
                    .model = TextOr(chunk, "model"),
                    .created = chunk.value("created", int64_t{0})});
  if (const Json usage = chunk.value("usage", Json()); usage.is_object()) {
    end_.usage = UsageOf(usage);
  }
  if (chunk.contains("metrics")) end_.times = TimesOf(chunk["metrics"]);
  if (!chunk["choices"].empty()) out_ += writer_->Part(PartOf(chunk["choices"][0]), end_.usage);
}

}  // namespace millrace::serve
