// Responses as they are stored, and conversations of several of them. Calls of the store may wait
// for the disk: not on an I/O thread. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "serve/http/api_error.h"
#include "serve/request/field_names.h"
#include "serve/request/parse_common.h"
#include "serve/stored/object_store.h"

namespace millrace::serve {

// Of a conversation that is continued by previous_response_id.
inline constexpr int kConversationResponsesMax = 1000;
inline constexpr size_t kConversationBytesMax = size_t{16} << 20;
// A stream of events beyond this cannot be fetched again.
inline constexpr size_t kStoredEventsBytesMax = size_t{8} << 20;

struct ResponseRecord {
  std::string owner, id, previous;
  int64_t created_s = 0;  // Unix time
  bool open = false;      // in the background, and not ended
  bool streams = false;   // made with "stream": its events can be fetched
  Json response;          // the object
  OrderedJson input;      // ResponsesRequest::input
  std::string chat;       // what to ask the chat route, for one that is open
  std::string ignored;    // TranslatedRequest::ignored
  FieldNames names;       // TranslatedRequest::names; stored while it is open
  std::string events;
};

Status PutRecord(ObjectStore& store, const ResponseRecord& record);
// Errors as ObjectStore::Get.
Result<ResponseRecord> GetRecord(ObjectStore& store, const std::string& owner,
                                 const std::string& id);
StoredObject ObjectOf(const ResponseRecord& record);
// kDataLoss with a text for the client: it is none.
Result<ResponseRecord> RecordOf(StoredObject object);

// The items of a response and of those before it, inputs and outputs in order. The error names
// previous_response_id.
Parsed<OrderedJson> StoredConversation(ObjectStore& store, const std::string& owner,
                                       const std::string& id);

}  // namespace millrace::serve
