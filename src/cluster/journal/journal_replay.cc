// ReplayJournal: reads a journal's folder.
#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "cluster/journal/journal.h"
#include "cluster/journal/journal_folder.h"
#include "cluster/journal/journal_segment.h"

namespace millrace::cluster {
namespace {

using Segments = std::map<uint64_t, std::string>;

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The newest snapshot, where reading begins; end() if there is none.
Result<Segments::const_iterator> NewestSnapshot(const Segments& segments) {
  for (auto it = segments.end(); it != segments.begin();) {
    --it;
    MR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(it->second));
    const Result<JournalSegmentHeader> header = DecodeSegmentHeader(Text(file));
    if (header.status().code() == StatusCode::kUnimplemented) return header.status();
    if (header.ok() && header->snapshot && header->number == it->first) return it;
  }
  return segments.end();
}

}  // namespace

Result<JournalReplay> ReplayJournal(const std::string& folder) {
  JournalReplay replay;
  MR_ASSIGN_OR_RETURN(const Segments segments, JournalSegments(folder));
  const uint64_t newest = NewestSegment(folder).value_or(0);
  if (segments.empty()) {
    if (newest > 0) replay.damage = fmt::format("all segments up to {} are missing", newest);
    return replay;
  }
  MR_ASSIGN_OR_RETURN(auto it, NewestSnapshot(segments));
  if (it == segments.end()) {
    replay.damage = "no segment has a valid snapshot header";
    return replay;
  }
  for (uint64_t number = it->first; it != segments.end(); ++it, ++number) {
    if (it->first != number) {
      replay.damage = fmt::format("segment {} is missing", number);
      return replay;
    }
    MR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(it->second));
    const JournalSegmentReport report = ReadSegment(Text(file), number, replay.state);
    replay.records += report.records;
    ++replay.segments;
    const bool last = std::next(it) == segments.end();
    const bool half_snapshot = report.header && report.header->snapshot && !report.snapshot_ended;
    if (report.torn && last && !half_snapshot) {
      replay.torn_bytes = file.bytes().size() - report.valid_bytes;
    } else if (!report.damage.empty() || report.torn || half_snapshot) {
      replay.damage = fmt::format("segment {}: {}", number,
                                  report.damage.empty() ? "cut short" : report.damage);
      return replay;
    }
  }
  if (const uint64_t last = segments.rbegin()->first; last < newest) {
    replay.damage = fmt::format("segment {} is missing", last + 1);
  }
  return replay;
}

}  // namespace millrace::cluster
