#include "base/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/log.h"

namespace millrace {
namespace {

constexpr mode_t kFolderMode = 0700, kFileMode = 0600;
constexpr mode_t kOthersMask = 0077, kOthersReadMask = 0004, kModeMask = 07777;

}  // namespace

Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (!error && (::mkdir(path.c_str(), kFolderMode) == 0 || errno == EEXIST)) return OkStatus();
  return Unavailable(fmt::format("cannot create folder {}: {}", path,
                                 error ? error.message() : std::strerror(errno)));
}

void MakePrivateFile(const std::string& path, MissingFile missing) {
  // O_NONBLOCK, so that opening a pipe without a reader cannot block.
  const int flags = O_WRONLY | O_CLOEXEC | O_NONBLOCK;
  const int fd =
      ::open(path.c_str(), flags | (missing == MissingFile::kCreate ? O_CREAT : 0), kFileMode);
  struct stat file = {};
  const bool found = fd >= 0 ? ::fstat(fd, &file) == 0 : ::stat(path.c_str(), &file) == 0;
  const bool is_open = found && S_ISREG(file.st_mode) && (file.st_mode & kOthersMask) != 0;
  if (is_open && fd >= 0 && ::fchmod(fd, kFileMode) == 0) {
    MR_LOG(info, "{} had mode {:04o}; it is private, and has {:04o} now", path,
           file.st_mode & kModeMask, kFileMode);
  } else if (is_open) {
    MR_LOG(warn,
           "{} has mode {:04o}, so other users may read it, and belongs to user {}, not to user {} "
           "of this process: run chown and chmod 600 on it, or name another file or folder",
           path, file.st_mode & kModeMask, file.st_uid, ::geteuid());
  }
  if (fd >= 0) ::close(fd);
}

void WarnIfOthersMayRead(const std::string& what, const std::string& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return;
  if ((file.st_mode & kOthersReadMask) == 0) return;
  MR_LOG(warn, "{} {} has mode {:04o}, so every user may read the secrets in it: chmod 600 {}",
         what, path, file.st_mode & kModeMask, path);
}

}  // namespace millrace
