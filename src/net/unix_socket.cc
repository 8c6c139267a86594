#include "net/unix_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace millrace::net {
namespace {

constexpr int kUnixBacklog = 128;
constexpr mode_t kSocketMode = 0600;

Result<sockaddr_un> UnixAddress(const std::string& path) {
  if (path.empty() || path.size() > kUnixPathBytesMax || path.find('\0') != std::string::npos) {
    return InvalidArgument(fmt::format(
        "the path of a unix socket may have 1 to {} bytes, but {} has {}; choose a shorter path",
        kUnixPathBytesMax, path, path.size()));
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> NewUnixSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    return Unavailable(fmt::format("cannot create a unix socket: {}", std::strerror(errno)));
  }
  return fd;
}

// Returns 0 or the errno.
int ConnectTo(int fd, const sockaddr_un& address) {
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd, name, sizeof(address)) == 0 ? 0 : errno;
}

// Removes the file of a process that has ended.
Status ClearPath(const std::string& path, const sockaddr_un& address) {
  struct stat there = {};
  if (lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT) return OkStatus();
    return Unavailable(fmt::format("cannot check {}: {}", path, std::strerror(errno)));
  }
  if (!S_ISSOCK(there.st_mode)) {
    return FailedPrecondition(
        fmt::format("{} is needed for a unix socket, but is not a socket; remove it", path));
  }
  MR_ASSIGN_OR_RETURN(UniqueFd probe, NewUnixSocket());
  const int error = ConnectTo(probe.get(), address);
  if (error != ECONNREFUSED && error != ENOENT) {
    return FailedPrecondition(fmt::format("another process is already listening on {}", path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Unavailable(fmt::format("cannot replace {}: {}", path, std::strerror(errno)));
  }
  return OkStatus();
}

// Ensures that one process at a time checks whether the file is stale, replaces it and listens.
Result<UniqueFd> LockFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || flock(fd.get(), LOCK_EX) != 0) {
    return Unavailable(fmt::format("cannot lock {}: {}", folder, std::strerror(errno)));
  }
  return fd;
}

}  // namespace

bool UnixSocketFile::IsThere() const {
  struct stat there = {};
  if (path_.empty() || lstat(path_.c_str(), &there) != 0) return false;
  return there.st_dev == device_ && there.st_ino == inode_;
}

void UnixSocketFile::Remove() const {
  if (IsThere()) unlink(path_.c_str());
}

Result<UnixListener> ListenOnUnixSocket(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  MR_ASSIGN_OR_RETURN(const UniqueFd lock, LockFolderOf(path));
  MR_RETURN_IF_ERROR(ClearPath(path, address));
  UnixListener listener;
  MR_ASSIGN_OR_RETURN(listener.socket, NewUnixSocket());
  const int fd = listener.socket.get();
  // Linux creates the file with the mode of the socket, so it never has another mode.
  struct stat made = {};
  if (fchmod(fd, kSocketMode) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      lstat(path.c_str(), &made) != 0) {
    return Unavailable(fmt::format("cannot listen on {}: {}", path, std::strerror(errno)));
  }
  listener.file.path_ = path;
  listener.file.device_ = made.st_dev;
  listener.file.inode_ = made.st_ino;
  if (chmod(path.c_str(), kSocketMode) != 0 || listen(fd, kUnixBacklog) != 0) {
    const Status status =
        Unavailable(fmt::format("cannot listen on {}: {}", path, std::strerror(errno)));
    listener.file.Remove();
    return status;
  }
  return listener;
}

Result<UniqueFd> ConnectUnixSocket(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  MR_ASSIGN_OR_RETURN(UniqueFd fd, NewUnixSocket());
  const int error = ConnectTo(fd.get(), address);
  if (error == 0) return fd;
  if (error == ENOENT || error == ENOTDIR) {
    return NotFound(fmt::format("socket {} does not exist", path));
  }
  if (error == ECONNREFUSED) {
    return Unavailable(
        fmt::format("nothing is listening on {}: the process that created it has ended", path));
  }
  return FailedPrecondition(fmt::format("cannot connect to {}: {}", path, std::strerror(error)));
}

}  // namespace millrace::net
