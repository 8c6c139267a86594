#include "base/control_groups.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace millrace {
namespace {

// Whether the comma-separated names of a line of version 1 contain the controller.
bool Names(std::string_view names, std::string_view controller) {
  while (true) {
    const size_t comma = names.find(',');
    if (names.substr(0, comma) == controller) return true;
    if (comma == std::string_view::npos) return false;
    names.remove_prefix(comma + 1);
  }
}

std::optional<double> QuotaOf(const ControlGroup& group) {
  std::string text;
  if (group.v2) {
    text = ReadSystemFile(group.folder + "/cpu.max").value_or("");
  } else {
    text = ReadSystemFile(group.folder + "/cpu.cfs_quota_us").value_or("") + " " +
           ReadSystemFile(group.folder + "/cpu.cfs_period_us").value_or("");
  }
  std::istringstream fields(text);
  double quota = 0, period = 0;
  // "max" and -1 stand for none.
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return {};
  return quota / period;
}

}  // namespace

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream in(path);
  if (!in) return {};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void ForEachControlGroup(const std::string& root, const std::string& controller,
                         const std::function<void(const ControlGroup&)>& each) {
  std::istringstream lines(ReadSystemFile(root + "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {  // NUMBER:CONTROLLERS:GROUP
    const size_t names = line.find(':');
    const size_t path = names == std::string::npos ? names : line.find(':', names + 1);
    if (path == std::string::npos) continue;
    const bool v2 = path == names + 1;
    if (!v2 && !Names(std::string_view(line).substr(names + 1, path - names - 1), controller)) {
      continue;
    }
    const std::string mount = root + "sys/fs/cgroup" + (v2 ? "" : "/" + controller);
    std::string group = line.substr(path + 1);
    while (true) {
      each({mount + group, v2});
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.resize(slash);
    }
  }
}

std::optional<double> ReadCpuQuota(const std::string& root) {
  std::optional<double> least;
  ForEachControlGroup(root, "cpu", [&](const ControlGroup& group) {
    const auto quota = QuotaOf(group);
    if (quota) least = std::min(least.value_or(*quota), *quota);
  });
  return least;
}

}  // namespace millrace
