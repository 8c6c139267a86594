// Rows of the object store: whatever they hold is read or refused, and what was read is written and
// read back the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "serve/stored/batch_lines.h"
#include "serve/stored/response_records.h"
#include "serve/stored/stored_json.h"

namespace {

using namespace millrace;
using namespace millrace::serve;

// A byte for the kind; a line, which is the body; the rest is the content.
StoredObject RowOf(std::string_view input) {
  StoredObject row{.kind = static_cast<ObjectKind>(1 + input[0] % 3), .id = "i", .open = true};
  input.remove_prefix(1);
  const size_t end = std::min(input.find('\n'), input.size());
  row.body = input.substr(0, end);
  row.content = input.substr(std::min(end + 1, input.size()));
  return row;
}

void ReadResponse(const StoredObject& row) {
  const Result<ResponseRecord> record = RecordOf(row);
  if (!record.ok()) return;
  const StoredObject written = ObjectOf(*record);
  const Result<ResponseRecord> again = RecordOf(written);
  MR_CHECK(again.ok()) << "what was read cannot be read again";
  const StoredObject twice = ObjectOf(*again);
  MR_CHECK(written.body == twice.body && written.content == twice.content);
  MR_CHECK(HeadChecksum(written) == HeadChecksum(twice));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  spdlog::set_level(spdlog::level::off);  // each damaged row is a line
  const StoredObject row = RowOf({reinterpret_cast<const char*>(data), size});
  if (row.kind == ObjectKind::kResponse) ReadResponse(row);
  if (row.kind == ObjectKind::kFile) (void)BodyOf(row).ok();
  if (row.kind == ObjectKind::kBatch) {
    const Result<Json> batch = BatchBodyOf(row);
    if (batch.ok()) (void)ParseBatchFile(row.content, (*batch)["endpoint"].get<std::string>());
  }
  return 0;
}
