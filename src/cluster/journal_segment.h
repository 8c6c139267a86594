// A segment of the journal: one file's header, the frame round each record, and the reader that
// stops at the first byte that is not as it was written. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/journal_record.h"

namespace millrace::cluster {

inline constexpr size_t kJournalSegmentHeaderBytes = 24;
inline constexpr size_t kJournalFrameBytes = 12;

struct JournalSegmentHeader {
  uint64_t number = 0;
  bool snapshot = false;  // the whole state; segments with smaller numbers no longer count
};

std::string EncodeSegmentHeader(const JournalSegmentHeader& header);
Result<JournalSegmentHeader> DecodeSegmentHeader(std::string_view segment);

// The record as the `index`-th of segment `number`: it is valid in no other place.
std::string FrameJournalRecord(const JournalRecord& record, uint64_t number, uint64_t index);

// The same round any bytes.
std::string FrameJournalPayload(std::string_view payload, uint64_t number, uint64_t index);

struct JournalSegmentReport {
  std::optional<JournalSegmentHeader> header;
  uint64_t records = 0;    // that were read and fitted
  size_t valid_bytes = 0;  // up to the end of the last of them
  bool torn = false;       // the rest is the beginning of one more record: a write cut short
  std::string damage;      // the rest is something else: what; empty: there is no such rest
  bool snapshot_ended = false;
};

// Applies the records of a segment to `state`, up to the first that is torn or damaged.
JournalSegmentReport ReadSegment(std::string_view bytes, uint64_t number, JournalState& state);

uint32_t JournalChecksum(std::string_view bytes, uint32_t before = 0);  // CRC-32C

}  // namespace millrace::cluster
