#include "serve/stored/stored_reply.h"

#include <string_view>

#include "base/json.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kData = "data: ";

}  // namespace

std::string BodyNotStored(const std::string& body) {
  Json response = Json::parse(body, nullptr, false);
  if (!response.is_object()) return body;
  response["store"] = false;
  return DumpJson(response);
}

std::string EventsNotStored(const std::string& events) {
  const size_t mark = events.rfind(kData);
  if (mark == std::string::npos) return events;
  const size_t begin = mark + kData.size();
  const size_t end = events.find('\n', begin);
  Json event = Json::parse(events.substr(begin, end - begin), nullptr, false);
  if (!event.is_object() || !event.contains("response")) return events;
  event["response"]["store"] = false;
  return events.substr(0, begin) + DumpJson(event) + events.substr(end);
}

void StoredReply::Send(net::HttpResponse response) {
  if (!holds_) return inner_->Send(std::move(response));
  store_([inner = inner_, response = std::move(response)](bool stored) mutable {
    if (!stored) response.body = BodyNotStored(response.body);
    inner->Send(std::move(response));
  });
}

bool StoredReply::Write(std::string part) {
  if (!holds_) return inner_->Write(std::move(part));
  held_ += part;
  return !inner_->disconnected();
}

void StoredReply::End() {
  if (!holds_) return inner_->End();
  store_([inner = inner_, held = std::move(held_)](bool stored) {
    inner->Write(stored ? held : EventsNotStored(held));
    inner->End();
  });
}

}  // namespace millrace::serve
