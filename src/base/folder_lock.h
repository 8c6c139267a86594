// FolderLock: makes a folder owned by one process at a time. The kernel releases the lock when the
// process ends, in whatever way. One thread at a time.
#pragma once

#include <string>

#include "base/file.h"
#include "base/status.h"

namespace millrace {

class FolderLock {
 public:
  // Creates the folder if it does not exist. kFailedPrecondition: another process holds the lock.
  static Result<FolderLock> Take(const std::string& folder);
  // Takes the lock even if another process holds it. That process is not notified; this is for
  // callers that notify it by other means (journal_owner.h).
  static Result<FolderLock> TakeAway(const std::string& folder);

 private:
  explicit FolderLock(UniqueFd fd) : fd_(std::move(fd)) {}
  static Result<FolderLock> Open(const std::string& path);
  UniqueFd fd_;
};

}  // namespace millrace
