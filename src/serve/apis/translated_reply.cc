#include "serve/apis/translated_reply.h"

#include <utility>

#include "base/check.h"
#include "serve/answer/response.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

// The rest of a call that is open, as a chunk of its own: it goes on before what follows it. Null:
// there is none, or nothing else in the chunk.
Json TakeOpenCall(Json& chunk) {
  if (chunk["choices"].empty()) return nullptr;
  Json& delta = chunk["choices"][0]["delta"];
  const auto calls = delta.find("tool_calls");
  if (calls == delta.end() || calls->empty() || delta.size() == 1) return nullptr;
  if ((*calls)[0].contains("id")) return nullptr;
  Json open = chunk;
  Json& choice = open["choices"][0];
  choice["delta"] = {{"tool_calls", Json::array({std::move((*calls)[0])})}};
  choice["finish_reason"] = nullptr;
  choice["logprobs"] = nullptr;
  calls->erase(calls->begin());
  return open;
}

}  // namespace

TranslatedReply::TranslatedReply(std::shared_ptr<net::HttpReply> inner, std::string ignored,
                                 FieldNames names)
    : inner_(std::move(inner)),
      ignored_(std::move(ignored)),
      names_(std::move(names)),
      parser_([this](std::string_view, std::string_view data) { TakeEvent(data); }) {}

void TranslatedReply::Send(net::HttpResponse response) {
  Json body = Json::parse(response.body, nullptr, false);
  MR_CHECK(body.is_object()) << "an answer that is not JSON";
  if (response.status != 200) names_.Rename(body["error"]);
  const Json translated =
      response.status == 200 ? Whole(body) : Error(body.value("error", Json()), response.status);
  response.body = DumpJson(translated);
  AddIgnored(response);
  inner_->Send(std::move(response));
}

void TranslatedReply::Start(net::HttpResponse head) {
  for (auto& [name, value] : head.headers) {
    if (name == "content-type") value = StreamType();
  }
  AddIgnored(head);
  inner_->Start(std::move(head));
}

void TranslatedReply::AddIgnored(net::HttpResponse& response) const {
  const auto renamed = [this](std::string_view name) { return names_.Of(name); };
  for (auto& [name, value] : response.headers) {
    if (name != kIgnoredHeader) continue;
    value = JoinIgnored(value, ignored_, renamed);
    return;
  }
  if (!ignored_.empty()) response.headers.emplace_back(kIgnoredHeader, ignored_);
}

std::string TranslatedReply::Ping() const { return std::string(kPing); }

bool TranslatedReply::Write(std::string part) {
  if (part == kPing) {
    std::string ping = Ping();
    return ping.empty() ? !inner_->disconnected() : inner_->Write(std::move(ping));
  }
  const Status fed = parser_.Feed(part);
  MR_CHECK(fed.ok()) << fed.ToString();
  if (out_.empty()) return !inner_->disconnected();
  return inner_->Write(std::exchange(out_, {}));
}

void TranslatedReply::TakeEvent(std::string_view data) {
  if (data == "[DONE]") {
    out_ += Done();
    return;
  }
  Json event = Json::parse(data, nullptr, false);
  MR_CHECK(event.is_object()) << "an event that is not JSON";
  if (event.contains("error")) {
    names_.Rename(event["error"]);
    out_ += StreamError(event["error"]);
  } else {
    if (const Json open = TakeOpenCall(event); !open.is_null()) out_ += Chunk(open);
    out_ += Chunk(event);
  }
}

}  // namespace millrace::serve
