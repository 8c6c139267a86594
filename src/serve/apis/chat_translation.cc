#include "serve/apis/chat_translation.h"

#include <fmt/format.h>

#include <utility>

#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

const OrderedJson kAbsent;

}  // namespace

Parsed<TranslatedRequest> ChatTranslation::Run() {
  for (const auto& [name, value] : json_.items()) {
    if (!KeysWithinLimit(value)) RefuseKeys(reader_, name);
  }
  if (reader_.error()) return *reader_.error();
  body_ = OrderedJson::parse(text_);
  Read();
  if (reader_.error()) return *reader_.error();
  return TranslatedRequest{std::move(chat_), IgnoredHeaderValue(reader_), std::move(names_)};
}

const OrderedJson& ChatTranslation::Take(const char* name) {
  return reader_.Find(name) == nullptr ? kAbsent : body_[name];
}

void ChatTranslation::Copy(const char* from, const char* to) {
  names_.Add(to, from);
  if (reader_.Find(from) != nullptr) chat_[to] = body_[from];
}

void ChatTranslation::AddMessage(const std::string& where, OrderedJson message) {
  names_.Add(fmt::format("messages[{}]", chat_["messages"].size()), where);
  chat_["messages"].push_back(std::move(message));
}

void ChatTranslation::AskForUsage() {
  if (chat_.value("stream", OrderedJson()) == OrderedJson(true)) {
    chat_["stream_options"] = {{"include_usage", true}};
  }
}

const OrderedJson& MemberOf(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return kAbsent;
  const auto found = object.find(name);
  return found == object.end() ? kAbsent : *found;
}

}  // namespace millrace::serve
