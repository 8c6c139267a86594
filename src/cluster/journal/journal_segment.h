// The format of a journal segment: the file's header, the frame around each record, and a reader
// that stops at the first record that is torn or damaged. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/journal/journal_record.h"

namespace millrace::cluster {

inline constexpr size_t kJournalSegmentHeaderBytes = 24;
inline constexpr size_t kJournalFrameBytes = 12;

struct JournalSegmentHeader {
  uint64_t number = 0;
  bool snapshot = false;  // the whole state; segments with smaller numbers are obsolete
};

std::string EncodeSegmentHeader(const JournalSegmentHeader& header);
// kUnimplemented: an intact header of another format version. kDataLoss: anything else.
Result<JournalSegmentHeader> DecodeSegmentHeader(std::string_view segment);

// Frames the record as the `index`-th of segment `number`. It is valid in that place only.
std::string FrameJournalRecord(const JournalRecord& record, uint64_t number, uint64_t index);

// The same for any payload.
std::string FrameJournalPayload(std::string_view payload, uint64_t number, uint64_t index);

struct JournalSegmentReport {
  std::optional<JournalSegmentHeader> header;
  uint64_t records = 0;    // that were read and applied
  size_t valid_bytes = 0;  // up to the end of the last of them
  bool torn = false;       // the rest is an incomplete record: an interrupted write
  std::string damage;      // what is wrong with the rest; empty: nothing, or torn
  bool snapshot_ended = false;
};

// Applies the records of a segment to `state`, up to the first that is torn or damaged.
JournalSegmentReport ReadSegment(std::string_view bytes, uint64_t number, JournalState& state);

}  // namespace millrace::cluster
