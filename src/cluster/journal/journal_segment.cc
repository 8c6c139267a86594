#include "cluster/journal/journal_segment.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "base/log.h"

namespace millrace::cluster {
namespace {

constexpr std::string_view kMagic = "MRJRNL03";
// Also read. A program that reads only this one ignores constraints, beams and vectors.
constexpr std::string_view kMagicBefore = "MRJRNL02";
constexpr size_t kNameBytes = 6;  // of kMagic; the format version is the rest

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T Read(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The checksum of the length alone, so that a length is verified before its payload is read.
uint32_t LengthChecksum(uint32_t length, uint64_t number, uint64_t index) {
  std::array<char, sizeof length + sizeof number + sizeof index> bytes;
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, &number, sizeof number);
  std::memcpy(bytes.data() + sizeof length + sizeof number, &index, sizeof index);
  return Crc32c({bytes.data(), bytes.size()});
}

}  // namespace

std::string EncodeSegmentHeader(const JournalSegmentHeader& header) {
  std::string out(kMagic);
  Append(out, header.number);
  Append(out, static_cast<uint32_t>(header.snapshot));
  Append(out, Crc32c(out));
  return out;
}

Result<JournalSegmentHeader> DecodeSegmentHeader(std::string_view segment) {
  if (segment.size() < kJournalSegmentHeaderBytes) return DataLoss("the header is cut short");
  const std::string_view header = segment.substr(0, kJournalSegmentHeaderBytes);
  const std::string_view magic = header.substr(0, kMagic.size());
  if (!magic.starts_with(kMagic.substr(0, kNameBytes))) return DataLoss("not a journal segment");
  if (Crc32c(header.substr(0, 20)) != Read<uint32_t>(header, 20)) {
    return DataLoss("wrong header checksum");
  }
  if (magic != kMagic && magic != kMagicBefore) {
    return Unimplemented(
        fmt::format("the journal has format version {}, this program reads versions {} and {}; "
                    "finish its requests "
                    "with the program that wrote it, or start with an empty journal folder",
                    Printable(magic.substr(kNameBytes)), kMagicBefore.substr(kNameBytes),
                    kMagic.substr(kNameBytes)));
  }
  const uint32_t flags = Read<uint32_t>(header, 16);
  if (flags > 1) return DataLoss("wrong header flags");
  return JournalSegmentHeader{Read<uint64_t>(header, 8), flags == 1};
}

std::string FrameJournalRecord(const JournalRecord& record, uint64_t number, uint64_t index) {
  return FrameJournalPayload(EncodeJournalRecord(record), number, index);
}

std::string FrameJournalPayload(std::string_view payload, uint64_t number, uint64_t index) {
  const auto length = static_cast<uint32_t>(payload.size());
  std::string out;
  out.reserve(kJournalFrameBytes + payload.size());
  Append(out, length);
  const uint32_t first = LengthChecksum(length, number, index);
  Append(out, first);
  Append(out, Crc32c(payload, first));
  out += payload;
  return out;
}

JournalSegmentReport ReadSegment(std::string_view bytes, uint64_t number, JournalState& state) {
  JournalSegmentReport report;
  // The header is written before the segment is used, so a short one is an incomplete write.
  const std::string_view magic = bytes.substr(0, kMagic.size());
  const bool named = kMagic.starts_with(magic) || kMagicBefore.starts_with(magic);
  if (bytes.size() < kJournalSegmentHeaderBytes && named) {
    report.torn = true;
    return report;
  }
  Result<JournalSegmentHeader> header = DecodeSegmentHeader(bytes);
  if (!header.ok()) {
    report.damage = header.status().message();
    return report;
  }
  if (header->number != number) {
    report.damage = fmt::format("the header has segment number {}", header->number);
    return report;
  }
  report.header = *header;
  report.valid_bytes = kJournalSegmentHeaderBytes;
  while (report.valid_bytes < bytes.size()) {
    const std::string_view rest = bytes.substr(report.valid_bytes);
    auto damaged = [&report](const std::string& what) {
      report.damage =
          fmt::format("record {} at byte {}: {}", report.records, report.valid_bytes, what);
      return report;
    };
    if (report.snapshot_ended) return damaged("data after the end of the snapshot");
    if (rest.size() < kJournalFrameBytes) {
      report.torn = true;
      return report;
    }
    const uint32_t length = Read<uint32_t>(rest, 0);
    const uint32_t first = LengthChecksum(length, number, report.records);
    if (Read<uint32_t>(rest, 4) != first) return damaged("wrong length checksum");
    if (length > kJournalRecordBytesMax) return damaged("the length exceeds the limit");
    if (rest.size() - kJournalFrameBytes < length) {
      report.torn = true;
      return report;
    }
    const std::string_view payload = rest.substr(kJournalFrameBytes, length);
    if (Crc32c(payload, first) != Read<uint32_t>(rest, 8)) {
      return damaged("wrong payload checksum");
    }
    Result<JournalRecord> record = DecodeJournalRecord(payload);
    if (!record.ok()) return damaged(record.status().message());
    if (const auto* end = std::get_if<JournalSnapshotEnd>(&*record)) {
      if (!header->snapshot || end->records != report.records) {
        return damaged("misplaced end of a snapshot");
      }
      report.snapshot_ended = true;
    }
    if (Status applied = state.Apply(*record); !applied.ok()) return damaged(applied.message());
    ++report.records;
    report.valid_bytes += kJournalFrameBytes + length;
  }
  return report;
}

}  // namespace millrace::cluster
