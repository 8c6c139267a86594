// Unix sockets with a name in the file system, for programs of one user. The file has mode 0600 and
// belongs in a folder of mode 0700: nothing else protects it. Any thread.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <string>

#include "base/status.h"
#include "net/listener.h"

namespace millrace::net {

// What the kernel takes, without the zero at the end.
inline constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

struct UnixListener;

// The file of one listening socket. A value: a copy removes the same file.
class UnixSocketFile {
 public:
  const std::string& path() const { return path_; }
  // False when the file is gone, or that of another socket is in its place.
  bool IsThere() const;
  // If it is there.
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

// Replaces the file of a process that is gone. kFailedPrecondition: a process listens there now, or
// the file is something else than a socket.
Result<UnixListener> ListenOnUnixSocket(const std::string& path);

// A connected, non-blocking socket. kNotFound: there is no such file. kUnavailable: the process
// that made it is gone.
Result<UniqueFd> ConnectUnixSocket(const std::string& path);

}  // namespace millrace::net
