// Unix sockets with a path in the file system, for processes of one user. Only file permissions
// protect a socket: its file has mode 0600 and belongs in a folder of mode 0700. Any thread may
// call these functions.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <string>

#include "base/status.h"
#include "net/listener.h"

namespace millrace::net {

// The kernel's limit, without the terminating zero.
inline constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

struct UnixListener;

// The file of one listening socket. A value: a copy removes the same file.
class UnixSocketFile {
 public:
  const std::string& path() const { return path_; }
  // False when the file no longer exists, or another socket has replaced it.
  bool IsThere() const;
  // Removes the file if IsThere().
  void Remove() const;

 private:
  friend Result<UnixListener> ListenOnUnixSocket(const std::string& path);
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

struct UnixListener {
  UniqueFd socket;
  UnixSocketFile file;  // the caller removes it
};

// Listens on `path`; replaces the file of a process that has ended. kFailedPrecondition: a running
// process listens there, or the file is not a socket.
Result<UnixListener> ListenOnUnixSocket(const std::string& path);

// Returns a connected, non-blocking socket. kNotFound: the file does not exist. kUnavailable: the
// process that created it has ended.
Result<UniqueFd> ConnectUnixSocket(const std::string& path);

}  // namespace millrace::net
