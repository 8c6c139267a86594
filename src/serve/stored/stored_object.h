// StoredObject: a row of the object store, and the checksums that show damage to one. Values and
// pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace::serve {

enum class ObjectKind : int { kResponse = 1, kFile = 2, kBatch = 3 };
const char* NameOf(ObjectKind kind);

struct StoredObject {
  ObjectKind kind = ObjectKind::kResponse;
  std::string owner;  // Call::owner
  std::string id;
  int64_t created_s = 0;  // Unix time
  bool open = false;      // the server still works on it; it is not dropped
  std::string body;       // JSON text: the object as its owner sees it
  std::string content;    // a file's bytes; of others, what the server needs to go on
  std::string events;     // the stream of a response, for clients that fetch it again
};

// One result of a batch.
struct StoredBatchLine {
  int64_t number = 0;  // of the request's line in the input file
  bool failed = false;
  std::string text;  // a line of the output file, or of the error file
};

// Of all but content and events, so that lists need not read these.
uint32_t HeadChecksum(const StoredObject& object);
// Of content and events, and whose they are.
uint32_t RestChecksum(const StoredObject& object);
uint32_t LineChecksum(const std::string& batch, const StoredBatchLine& line);

// What an object counts in the store.
size_t BytesOf(const StoredObject& object);

// Both with a text for the client.
Status NoSuchObject(ObjectKind kind, const std::string& id);
// kDataLoss; `why` goes to the log only.
Status Damaged(ObjectKind kind, const std::string& id, const std::string& why);

}  // namespace millrace::serve
