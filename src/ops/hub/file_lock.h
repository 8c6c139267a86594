// FileLock: a file that one process at a time has locked, as the hub's own tools lock theirs. The
// kernel releases it when the process ends. One thread.
#pragma once

#include <functional>
#include <string>

#include "base/file.h"
#include "base/status.h"

namespace millrace::ops {

class FileLock {
 public:
  // Creates the file and its folders. While another process has the lock, asks `wait` (which
  // sleeps) again and again, and returns its first error.
  static Result<FileLock> Take(const std::string& path, const std::function<Status()>& wait);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace millrace::ops
