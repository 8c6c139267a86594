// FolderLock: one process at a time owns a folder. The kernel lets go when the process ends,
// however it ends.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::cluster {

class FolderLock {
 public:
  // Makes the folder if need be. kFailedPrecondition while somebody else holds it.
  static Result<FolderLock> Take(const std::string& folder);
  // Takes it from whoever holds it, who does not notice: for those who have told him in another
  // way (journal_owner.h).
  static Result<FolderLock> TakeAway(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  static Result<FolderLock> Open(const std::string& path);
  int fd_;
};

}  // namespace millrace::cluster
