#include "base/host_memory.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace millrace {
namespace {

// Files of /proc and /sys report length 0, so they are read as streams.
std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream in(path);
  if (!in) return {};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line.
std::optional<int64_t> Field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size(), nullptr, 10);
  }
  return {};
}

// A file of one number; nullopt for "max" and for anything unreadable.
std::optional<int64_t> Number(const std::string& path) {
  std::optional<std::string> text = ReadText(path);
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return {};
  return std::strtoll(text->c_str(), nullptr, 10);
}

// Memory left in a control group (version 2). Page cache does not count; it is reclaimable.
std::optional<int64_t> LeftInGroup(const std::string& folder) {
  std::optional<int64_t> limit = Number(folder + "/memory.max");
  std::optional<int64_t> current = Number(folder + "/memory.current");
  if (!limit || !current) return {};
  const int64_t cache = Field(ReadText(folder + "/memory.stat").value_or(""), "file ").value_or(0);
  return std::max<int64_t>(0, *limit - (*current - cache));
}

std::optional<int64_t> LeftInGroupV1(const std::string& folder) {
  std::optional<int64_t> limit = Number(folder + "/memory.limit_in_bytes");
  std::optional<int64_t> usage = Number(folder + "/memory.usage_in_bytes");
  if (!limit || !usage || *limit >= int64_t{1} << 60) return {};
  const int64_t cache =
      Field(ReadText(folder + "/memory.stat").value_or(""), "total_cache ").value_or(0);
  return std::max<int64_t>(0, *limit - (*usage - cache));
}

// Every group from this process's up to the root may have a limit.
std::optional<int64_t> LeftInGroups(const std::string& root) {
  const std::string own = ReadText(root + "proc/self/cgroup").value_or("");
  std::istringstream lines(own);
  std::optional<int64_t> least;
  const auto take = [&](std::optional<int64_t> left) {
    if (left && (!least || *left < *least)) least = left;
  };
  for (std::string line; std::getline(lines, line);) {
    const bool v2 = line.starts_with("0::");
    const size_t v1 = line.find(":memory:");
    if (!v2 && v1 == std::string::npos) continue;
    std::string group = line.substr(v2 ? 3 : v1 + 8);
    const std::string mount = root + (v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    while (true) {
      take(v2 ? LeftInGroup(mount + group) : LeftInGroupV1(mount + group));
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.resize(slash);
    }
  }
  return least;
}

}  // namespace

MemoryAvailable ReadMemoryAvailable(const std::string& root) {
  MemoryAvailable available{std::numeric_limits<int64_t>::max(), "MemAvailable"};
  const std::string meminfo = ReadText(root + "proc/meminfo").value_or("");
  if (std::optional<int64_t> kib = Field(meminfo, "MemAvailable:")) available.bytes = *kib * 1024;
  std::optional<int64_t> left = LeftInGroups(root);
  if (left && *left < available.bytes) available = {*left, "control group limit"};
  return available;
}

}  // namespace millrace
