#include "serve/stored/response_records.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/log.h"

namespace millrace::serve {
namespace {

ApiError CannotContinue(std::string why) {
  ApiError error = BadField("previous_response_id", "previous_response_id: " + std::move(why));
  error.code = "previous_response_not_found";
  return error;
}

}  // namespace

Status PutRecord(ObjectStore& store, const ResponseRecord& record) {
  const OrderedJson content = {{"previous", record.previous},
                               {"streams", record.streams},
                               {"input", record.input},
                               {"chat", record.chat},
                               {"ignored", record.ignored}};
  return store.Put({.owner = record.owner,
                    .id = record.id,
                    .created_s = record.created_s,
                    .open = record.open,
                    .body = DumpJson(record.response),
                    .content = content.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
                    .events = record.events});
}

ResponseRecord RecordOf(StoredObject object) {
  OrderedJson content = OrderedJson::parse(object.content);
  return {.owner = std::move(object.owner),
          .id = std::move(object.id),
          .previous = content["previous"].get<std::string>(),
          .created_s = object.created_s,
          .open = object.open,
          .streams = content["streams"].get<bool>(),
          .response = Json::parse(object.body),
          .input = std::move(content["input"]),
          .chat = content["chat"].get<std::string>(),
          .ignored = content["ignored"].get<std::string>(),
          .events = std::move(object.events)};
}

Result<ResponseRecord> GetRecord(ObjectStore& store, const std::string& owner,
                                 const std::string& id) {
  MR_ASSIGN_OR_RETURN(StoredObject object, store.Get(ObjectKind::kResponse, owner, id));
  return RecordOf(std::move(object));
}

Parsed<OrderedJson> StoredConversation(ObjectStore& store, const std::string& owner,
                                       const std::string& id) {
  std::vector<ResponseRecord> records;  // the newest first
  size_t bytes = 0;
  for (std::string next = id; !next.empty(); next = records.back().previous) {
    if (records.size() == kConversationResponsesMax) {
      return CannotContinue(
          fmt::format("The conversation has more than {} responses; begin a new one with its text.",
                      kConversationResponsesMax));
    }
    auto object = store.Get(ObjectKind::kResponse, owner, next);
    if (object.status().code() == StatusCode::kNotFound) {
      return CannotContinue(records.empty()
                                ? object.status().message()
                                : fmt::format("A response before {}: {}", Printable(id, 64),
                                              object.status().message()));
    }
    if (!object.ok()) return FromStatus(object.status());
    bytes += object->body.size() + object->content.size();
    if (bytes > kConversationBytesMax) {
      return CannotContinue(
          fmt::format("The conversation has more than {} bytes; begin a new one with its text.",
                      kConversationBytesMax));
    }
    records.push_back(RecordOf(std::move(*object)));
    const Json& status = records.back().response["status"];
    if (status != Json("completed") && status != Json("incomplete")) {
      return CannotContinue(fmt::format("Response {} cannot be continued: its status is {}.",
                                        Printable(next, 64), status.get<std::string>()));
    }
  }
  OrderedJson items = OrderedJson::array();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    for (OrderedJson& item : record->input) items.push_back(std::move(item));
    for (const Json& item : record->response["output"]) items.push_back(OrderedJson(item));
  }
  return items;
}

}  // namespace millrace::serve
