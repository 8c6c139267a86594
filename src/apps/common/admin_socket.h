// The path of a server's admin socket. It follows from the server's port and user, so that commands
// on the same machine find it. Functions over the file system; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::apps {

// Folders in which a user's programs keep their sockets.
struct RuntimePlaces {
  std::string xdg_runtime_dir;          // the environment's; empty: none
  std::string user_root = "/run/user";  // has a folder for each user with a session
  std::string temporary_root = "/tmp";
  uid_t user = 0;

  static RuntimePlaces OfThisProcess();
};

// Every path at which a server of this user may have its socket for `port`, the first choice first:
// in $XDG_RUNTIME_DIR/millrace, if that variable names a folder of the user, or one of root's that
// has a folder millrace of the user or that the user can write to; in /run/user/UID/millrace, if
// /run/user/UID belongs to the user; in /tmp/millrace-UID. Paths too long for a socket are left
// out.
std::vector<std::string> AdminSocketPaths(const RuntimePlaces& places, uint16_t port);

// Returns the first choice and creates its folder with mode 0700. Fails when the folder belongs to
// another user, is open to others or is a symbolic link.
Result<std::string> MakeAdminSocketPath(const RuntimePlaces& places, uint16_t port);

// Returns the first of the paths where a server listens, or kUnavailable with the paths tried.
Result<std::string> FindAdminSocket(const RuntimePlaces& places, uint16_t port);

}  // namespace millrace::apps
