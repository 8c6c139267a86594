#include "serve/translated_reply.h"

#include <utility>

#include "base/check.h"
#include "serve/ignored_fields.h"
#include "serve/response.h"

namespace millrace::serve {

TranslatedReply::TranslatedReply(std::shared_ptr<net::HttpReply> inner, std::string ignored)
    : inner_(std::move(inner)),
      ignored_(std::move(ignored)),
      parser_([this](std::string_view, std::string_view data) { TakeEvent(data); }) {}

void TranslatedReply::Send(net::HttpResponse response) {
  const Json body = Json::parse(response.body, nullptr, false);
  MR_CHECK(body.is_object()) << "an answer that is not JSON";
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
  if (ignored_.empty()) return;
  for (auto& [name, value] : response.headers) {
    if (name != kIgnoredHeader) continue;
    value += ", " + ignored_;
    return;
  }
  response.headers.emplace_back(kIgnoredHeader, ignored_);
}

bool TranslatedReply::Write(std::string part) {
  if (part == kPing) {
    return HasComments() ? inner_->Write(std::move(part)) : !inner_->disconnected();
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
  const Json event = Json::parse(data, nullptr, false);
  MR_CHECK(event.is_object()) << "an event that is not JSON";
  out_ += event.contains("error") ? StreamError(event["error"]) : Chunk(event);
}

}  // namespace millrace::serve
