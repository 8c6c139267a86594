#include "ops/hub/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"

namespace millrace::ops {
namespace {

Status CannotLock(const std::string& path) {
  return FailedPrecondition(
      fmt::format("cannot lock {}: {}", Printable(path, 1024), std::strerror(errno)));
}

// Other tools may remove the file when they release it.
bool StillNamed(int fd, const std::string& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

}  // namespace

Result<FileLock> FileLock::Take(const std::string& path, const std::function<Status()>& wait) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd.valid()) return CannotLock(path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (StillNamed(fd.get(), path)) return FileLock(std::move(fd));
    } else if (errno != EWOULDBLOCK && errno != EINTR) {
      return CannotLock(path);
    }
    MR_RETURN_IF_ERROR(wait());
  }
}

}  // namespace millrace::ops
