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
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace millrace::cluster
