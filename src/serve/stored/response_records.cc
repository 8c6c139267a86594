#include "serve/stored/response_records.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/stored/stored_json.h"

namespace millrace::serve {
namespace {

ApiError CannotContinue(std::string why) {
  ApiError error = BadField("previous_response_id", "previous_response_id: " + std::move(why));
  error.code = "previous_response_not_found";
  return error;
}

}  // namespace

StoredObject ObjectOf(const ResponseRecord& record) {
  OrderedJson content = {{"previous", record.previous},
                         {"streams", record.streams},
                         {"input", record.input},
                         {"chat", record.chat},
                         {"ignored", record.ignored}};
  if (record.open) content["names"] = record.names.ToJson();
  return {.owner = record.owner,
          .id = record.id,
          .created_s = record.created_s,
          .open = record.open,
          .body = DumpJson(record.response),
          .content = content.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
          .events = record.events};
}

Status PutRecord(ObjectStore& store, const ResponseRecord& record) {
  return store.Put(ObjectOf(record));
}

Result<ResponseRecord> RecordOf(StoredObject object) {
  const auto damaged = [&](const std::string& why) {
    return Damaged(ObjectKind::kResponse, object.id, why);
  };
  MR_ASSIGN_OR_RETURN(Json response, BodyOf(object));
  if (!IsText(response, "status")) return damaged("it has no status");
  if (!IsListOfObjects(response, "output")) return damaged("its output is no list of items");
  Result<OrderedJson> read = ParseOrderedJson(object.content, kStoredDepthMax);
  if (!read.ok()) return damaged(read.status().message());
  OrderedJson& content = *read;
  for (const char* name : {"previous", "chat", "ignored"}) {
    if (!IsText(content, name)) return damaged(fmt::format("{} is no text", name));
  }
  if (!IsListOfObjects(content, "input")) return damaged("its input is no list of items");
  const OrderedJson streams = content.value("streams", OrderedJson());
  if (!streams.is_boolean()) return damaged("streams is no truth value");
  const Json names = content.value("names", OrderedJson());
  return ResponseRecord{.owner = std::move(object.owner),
                        .id = std::move(object.id),
                        .previous = content["previous"].get<std::string>(),
                        .created_s = object.created_s,
                        .open = object.open,
                        .streams = streams.get<bool>(),
                        .response = std::move(response),
                        .input = std::move(content["input"]),
                        .chat = content["chat"].get<std::string>(),
                        .ignored = content["ignored"].get<std::string>(),
                        .names = FieldNames::FromJson(names),
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
    if (!object.ok()) return StoredError(object.status());
    bytes += object->body.size() + object->content.size();
    if (bytes > kConversationBytesMax) {
      return CannotContinue(
          fmt::format("The conversation has more than {} bytes; begin a new one with its text.",
                      kConversationBytesMax));
    }
    Result<ResponseRecord> record = RecordOf(std::move(*object));
    if (!record.ok()) return StoredError(record.status());
    records.push_back(std::move(*record));
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
