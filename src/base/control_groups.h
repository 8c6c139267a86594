// The control groups that this process is in, version 1 or 2, from its own up to the root: each may
// limit what the process may use. Plain functions over files; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace millrace {

struct ControlGroup {
  std::string folder;
  bool v2 = false;
};

// Calls `each` for all groups of this process that may limit by `controller`, "memory" or "cpu".
// `root` is "/" except in tests.
void ForEachControlGroup(const std::string& root, const std::string& controller,
                         const std::function<void(const ControlGroup&)>& each);

// How many CPUs this process may use at once by its groups' quotas, such as 0.5. nullopt: no group
// has one.
std::optional<double> ReadCpuQuota(const std::string& root = "/");

// The content of a file of /proc or /sys, which report the length 0. nullopt: it cannot be read.
std::optional<std::string> ReadSystemFile(const std::string& path);

}  // namespace millrace
