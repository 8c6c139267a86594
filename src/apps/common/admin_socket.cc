#include "apps/common/admin_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "net/unix_socket.h"

namespace millrace::apps {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kOthersMask = 077;
constexpr uid_t kRoot = 0;
constexpr uint16_t kHighestPort = 65535;
constexpr char kOwnFolderCure[] = "set XDG_RUNTIME_DIR to a folder of your own";

std::optional<uid_t> OwnerOfFolder(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) return std::nullopt;
  return found.st_uid;
}

std::string SocketName(uint16_t port) { return fmt::format("/admin-{}.sock", port); }

// Service managers and containers give a user a folder that belongs to root: one with a folder of
// the user in it, or one that the user can write to.
bool Usable(const std::string& xdg, uid_t user) {
  const auto owner = OwnerOfFolder(xdg);
  if (owner == user) return true;
  if (owner != kRoot) return false;
  return OwnerOfFolder(xdg + "/millrace") == user ||
         faccessat(AT_FDCWD, xdg.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

std::vector<std::string> AdminFolders(const RuntimePlaces& places) {
  std::vector<std::string> folders;
  const std::string& xdg = places.xdg_runtime_dir;
  const auto add = [&](const std::string& parent) {
    const std::string folder = parent + "/millrace";
    if ((folder + SocketName(kHighestPort)).size() <= net::kUnixPathBytesMax)
      folders.push_back(folder);
  };
  // The variable may come from another user (su, sudo -E) or another machine (batch systems).
  if (xdg.starts_with('/') && Usable(xdg, places.user)) add(xdg);
  const std::string session = fmt::format("{}/{}", places.user_root, places.user);
  if (OwnerOfFolder(session) == places.user) add(session);
  folders.push_back(fmt::format("{}/millrace-{}", places.temporary_root, places.user));
  return folders;
}

// kNotFound: the folder does not exist.
Status CheckAdminFolder(const std::string& path, uid_t user) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) {
    const int error = errno;
    if (error == ENOENT) return NotFound(path + " does not exist");
    return FailedPrecondition(
        fmt::format("cannot inspect {}: {}; {}", path, std::strerror(error), kOwnFolderCure));
  }
  if (S_ISLNK(found.st_mode)) {
    return FailedPrecondition(fmt::format(
        "{} is a symbolic link; the admin socket needs a real folder: remove the link, or {}", path,
        kOwnFolderCure));
  }
  if (!S_ISDIR(found.st_mode)) {
    return FailedPrecondition(
        fmt::format("{} is not a folder, but the admin socket needs one there; remove it, or {}",
                    path, kOwnFolderCure));
  }
  if (found.st_uid != user) {
    return FailedPrecondition(fmt::format("{} belongs to user {}, but user {} runs this; {}", path,
                                          found.st_uid, user, kOwnFolderCure));
  }
  if ((found.st_mode & kOthersMask) != 0) {
    return FailedPrecondition(
        fmt::format("{} has mode {:04o}, so that other users can enter it; run: chmod 700 {}", path,
                    found.st_mode & 07777, path));
  }
  return OkStatus();
}

}  // namespace

RuntimePlaces RuntimePlaces::OfThisProcess() {
  RuntimePlaces places;
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR")) places.xdg_runtime_dir = xdg;
  places.user = geteuid();
  return places;
}

std::vector<std::string> AdminSocketPaths(const RuntimePlaces& places, uint16_t port) {
  std::vector<std::string> paths;
  for (const std::string& folder : AdminFolders(places)) {
    std::string path = folder + SocketName(port);
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  }
  return paths;
}

Result<std::string> MakeAdminSocketPath(const RuntimePlaces& places, uint16_t port) {
  const std::string folder = AdminFolders(places).front();
  Status status = CheckAdminFolder(folder, places.user);
  if (status.code() == StatusCode::kNotFound) {
    if (mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) {
      return FailedPrecondition(
          fmt::format("cannot make the folder {} for the admin socket: {}; {}", folder,
                      std::strerror(errno), kOwnFolderCure));
    }
    status = CheckAdminFolder(folder, places.user);
  }
  MR_RETURN_IF_ERROR(status);
  return folder + SocketName(port);
}

Result<std::string> FindAdminSocket(const RuntimePlaces& places, uint16_t port) {
  const std::vector<std::string> paths = AdminSocketPaths(places, port);
  Status found_bad;
  for (const std::string& path : paths) {
    const std::string folder = std::filesystem::path(path).parent_path();
    Status status = CheckAdminFolder(folder, places.user);
    if (status.ok()) status = net::ConnectUnixSocket(path).status();
    if (status.ok()) return path;
    if (found_bad.ok() && status.code() != StatusCode::kNotFound) found_bad = status;
  }
  if (!found_bad.ok()) return Unavailable(found_bad.message());
  return Unavailable(fmt::format(
      "user {} has no server with an admin socket for port {} (tried {}). Is a server running on "
      "port {}? Only the user who started it can call it: sudo -u USER millrace ...; for another "
      "port give --base-url http://127.0.0.1:PORT",
      places.user, port, fmt::join(paths, ", "), port));
}

}  // namespace millrace::apps
