#include "serve/stored/stored_object.h"

#include <fmt/format.h>

#include "base/crc32c.h"
#include "base/log.h"

namespace millrace::serve {

const char* NameOf(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kResponse: return "response";
    case ObjectKind::kFile: return "file";
    case ObjectKind::kBatch: return "batch";
  }
  return "object";
}

size_t BytesOf(const StoredObject& object) {
  return object.id.size() + object.body.size() + object.content.size() + object.events.size();
}

Status NoSuchObject(ObjectKind kind, const std::string& id) {
  return NotFound(fmt::format(
      "No {} with the id '{}' is stored: it was deleted, dropped, never stored, or belongs to "
      "another key.",
      NameOf(kind), Printable(id, 64)));
}

uint32_t HeadChecksum(const StoredObject& object) {
  uint32_t sum =
      Crc32c(fmt::format("{} {} {} {} {} {} ", static_cast<int>(object.kind), object.created_s,
                         object.open, object.owner.size(), object.id.size(), object.body.size()));
  for (const std::string* part : {&object.owner, &object.id, &object.body}) {
    sum = Crc32c(*part, sum);
  }
  return sum;
}

uint32_t RestChecksum(const StoredObject& object) {
  uint32_t sum = Crc32c(fmt::format("{} {} ", object.id, object.content.size()));
  sum = Crc32c(object.content, sum);
  return Crc32c(object.events, sum);
}

uint32_t LineChecksum(const std::string& batch, const StoredBatchLine& line) {
  return Crc32c(line.text, Crc32c(fmt::format("{} {} {} ", batch, line.number, line.failed)));
}

Status Damaged(ObjectKind kind, const std::string& id, const std::string& why) {
  const std::string name = fmt::format("{} '{}'", NameOf(kind), Printable(id, 64));
  MR_LOG(error, "the stored {} is damaged: {}", name, Printable(why));
  return DataLoss(fmt::format(
      "The stored {} is damaged and cannot be read: delete it, and make it again.", name));
}

}  // namespace millrace::serve
