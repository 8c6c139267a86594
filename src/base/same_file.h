// SameFile: whether the file at a path is still the one that was opened there. A file that was
// removed or replaced can be written as before, and all of that is lost with the process. Any
// thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/status.h"

namespace millrace {

class SameFile {
 public:
  explicit SameFile(std::string path) : path_(std::move(path)), number_(NumberOf(path_)) {}
  // kFailedPrecondition: it is gone, or another one.
  Status Check() const;

 private:
  static std::optional<ino_t> NumberOf(const std::string& path);

  std::string path_;
  std::optional<ino_t> number_;
};

}  // namespace millrace
