#include "net/data/same_host.h"

#include <unistd.h>

#include "base/file.h"

namespace millrace::net {

std::string ThisHostId() {
  std::string id;
  if (auto boot = ReadFile("/proc/sys/kernel/random/boot_id", 64); boot.ok()) {
    id = boot->substr(0, boot->find('\n'));
  }
  char space[64];
  const ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space));
  if (n > 0) id += "/" + std::string(space, static_cast<size_t>(n));
  return id;
}

}  // namespace millrace::net
