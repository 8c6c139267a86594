// The files of a journal's folder: their names, writing them whole, reading them back. Used by
// journal.cc alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::cluster {

std::string JournalSegmentPath(const std::string& folder, uint64_t number);
// Of a snapshot until it is complete; by term, so that no two leaders write to one.
std::string JournalHalfWrittenPath(const std::string& folder, uint64_t term);
void RemoveHalfWritten(const std::string& folder);
// By number; what has another name is not looked at.
Result<std::map<uint64_t, std::string>> JournalSegments(const std::string& folder);

// A file that is only appended to. One thread at a time.
class JournalFile {
 public:
  // kFailedPrecondition: there is a file of that name.
  static Result<JournalFile> Create(const std::string& path);
  JournalFile(JournalFile&& other) noexcept;
  JournalFile& operator=(JournalFile&& other) noexcept;
  ~JournalFile();

  Status Write(std::string_view bytes);
  Status Sync();

 private:
  JournalFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status Error(const char* what) const;

  int fd_;
  std::string path_;
};

Status SyncFolder(const std::string& folder);
Status MoveFile(const std::string& from, const std::string& to);
// kFailedPrecondition: there is a file of that name.
Status MoveToNew(const std::string& from, const std::string& to);

}  // namespace millrace::cluster
