// Segments of a journal: everything read adds up to a state whose snapshot reads back unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "cluster/journal/journal_segment.h"

namespace {

using namespace millrace;
using namespace millrace::cluster;

// Bytes that a fuzzer hardly finds: frames with correct checksums around pieces of its input.
std::string Framed(std::string_view input) {
  std::string bytes = EncodeSegmentHeader({.number = 1});
  uint64_t index = 0;
  while (!input.empty()) {
    const size_t size = std::min(input.size() - 1, static_cast<size_t>(input[0]) & 0xff);
    bytes += FrameJournalPayload(input.substr(1, size), 1, index++);
    input.remove_prefix(1 + size);
  }
  return bytes;
}

void Read(std::string_view bytes) {
  JournalState state;
  const JournalSegmentReport report = ReadSegment(bytes, 1, state);
  MR_CHECK(report.valid_bytes <= bytes.size());
  JournalState prefix;
  const auto again = ReadSegment(bytes.substr(0, report.valid_bytes), 1, prefix);
  MR_CHECK(again.damage.empty() && again.records == report.records && prefix == state)
      << "what was read is not a prefix";
  JournalState copy;
  for (const JournalRecord& record : state.Snapshot()) {
    Result<JournalRecord> back = DecodeJournalRecord(EncodeJournalRecord(record));
    MR_CHECK(back.ok() && copy.Apply(*back).ok()) << "what was written is not read back";
  }
  MR_CHECK(copy == state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Read(input);
  Read(Framed(input));
  return 0;
}
