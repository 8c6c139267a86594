// Where a server's admin socket lies. The path follows from the server's port and user, so that
// commands on the same machine find it. Functions over the file system; any thread.
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
  std::string user_root = "/run/user";  // has a folder for each user who has a session
  std::string temporary_root = "/tmp";
  uid_t user = 0;

  static RuntimePlaces OfThisProcess();
};

// Every path at which a server of this user may have its socket for `port`, the first choice first:
// in $XDG_RUNTIME_DIR/millrace, if that variable names a folder of the user's or of root's; in
// /run/user/UID/millrace, if /run/user/UID is the user's; in /tmp/millrace-UID.
std::vector<std::string> AdminSocketPaths(const RuntimePlaces& places, uint16_t port);

// The first choice, with its folder made: mode 0700. An error when the folder is another user's,
// open to others or a symbolic link.
Result<std::string> MakeAdminSocketPath(const RuntimePlaces& places, uint16_t port);

// The first of the paths where a server listens. kUnavailable says what was tried.
Result<std::string> FindAdminSocket(const RuntimePlaces& places, uint16_t port);

}  // namespace millrace::apps
