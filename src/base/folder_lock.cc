#include "base/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace millrace {
namespace {

Status Error(const char* what, const std::string& path) {
  return Unavailable(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

// Whether `path` still names the file behind `fd`. TakeAway puts another file in its place.
bool SameFile(int fd, const std::string& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

}  // namespace

Result<FolderLock> FolderLock::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return Error("open", path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return FolderLock(std::move(fd));
  return FailedPrecondition(fmt::format("{} is locked", path));
}

Result<FolderLock> FolderLock::Take(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return Unavailable(fmt::format("cannot create folder {}: {}", folder, error.message()));
  const std::string path = folder + "/lock";
  auto lock = Open(path);
  const bool taken_away = lock.ok() && !SameFile(lock->fd_.get(), path);
  if (taken_away || lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition(fmt::format("folder {} is in use by another process", folder));
  }
  return lock;
}

Result<FolderLock> FolderLock::TakeAway(const std::string& folder) {
  const std::string path = folder + "/lock";
  const std::string mine = fmt::format("{}.{}", path, ::getpid());
  MR_ASSIGN_OR_RETURN(FolderLock lock, Open(mine));
  if (::rename(mine.c_str(), path.c_str()) != 0) return Error("replace", path);
  return lock;
}

}  // namespace millrace
