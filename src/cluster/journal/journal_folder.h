// The files of a journal's folder: their names, listing, writing and renaming. Private to the
// journal.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"

namespace millrace::cluster {

std::string JournalSegmentPath(const std::string& folder, uint64_t number);
// The path of a snapshot until it is complete. It contains the term, so that two leaders never
// write to the same file.
std::string JournalHalfWrittenPath(const std::string& folder, uint64_t term);
void RemoveHalfWritten(const std::string& folder);
// The segments by number. Files with other names are ignored.
Result<std::map<uint64_t, std::string>> JournalSegments(const std::string& folder);

// The number of the newest segment that was begun, as the folder's file "newest" says: a segment
// that is missing at the end shows by it. nullopt: no file, as in journals of earlier versions.
std::optional<uint64_t> NewestSegment(const std::string& folder);
// Failing is harmless: a lower number hides nothing but the loss of the segments after it.
void WriteNewestSegment(const std::string& folder, uint64_t number);

// A file that is only appended to. One thread at a time.
class JournalFile {
 public:
  // kFailedPrecondition: the file exists.
  static Result<JournalFile> Create(const std::string& path);

  Status Write(std::string_view bytes);
  Status Sync();

 private:
  JournalFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status Error(const char* what) const;

  UniqueFd fd_;
  std::string path_;
};

Status SyncFolder(const std::string& folder);
Status MoveFile(const std::string& from, const std::string& to);
// kFailedPrecondition: `to` exists.
Status MoveToNew(const std::string& from, const std::string& to);

}  // namespace millrace::cluster
