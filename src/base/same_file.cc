#include "base/same_file.h"

#include <sys/stat.h>

namespace millrace {

std::optional<ino_t> SameFile::NumberOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return found.st_ino;
}

Status SameFile::Check() const {
  if (number_ && NumberOf(path_) == number_) return OkStatus();
  return FailedPrecondition(path_ +
                            " was removed or replaced: what is written now is lost with this "
                            "process; restart it");
}

}  // namespace millrace
