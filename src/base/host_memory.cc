#include "base/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>

#include "base/control_groups.h"

namespace millrace {
namespace {

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
  std::optional<std::string> text = ReadSystemFile(path);
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return {};
  return std::strtoll(text->c_str(), nullptr, 10);
}

// Memory left in a control group (version 2). Page cache does not count; it is reclaimable.
std::optional<int64_t> LeftInGroup(const std::string& folder) {
  std::optional<int64_t> limit = Number(folder + "/memory.max");
  std::optional<int64_t> current = Number(folder + "/memory.current");
  if (!limit || !current) return {};
  const int64_t cache =
      Field(ReadSystemFile(folder + "/memory.stat").value_or(""), "file ").value_or(0);
  return std::max<int64_t>(0, *limit - (*current - cache));
}

std::optional<int64_t> LeftInGroupV1(const std::string& folder) {
  std::optional<int64_t> limit = Number(folder + "/memory.limit_in_bytes");
  std::optional<int64_t> usage = Number(folder + "/memory.usage_in_bytes");
  if (!limit || !usage || *limit >= int64_t{1} << 60) return {};
  const int64_t cache =
      Field(ReadSystemFile(folder + "/memory.stat").value_or(""), "total_cache ").value_or(0);
  return std::max<int64_t>(0, *limit - (*usage - cache));
}

// Every group from this process's up to the root may have a limit.
std::optional<int64_t> LeftInGroups(const std::string& root) {
  std::optional<int64_t> least;
  ForEachControlGroup(root, "memory", [&](const ControlGroup& group) {
    const auto left = group.v2 ? LeftInGroup(group.folder) : LeftInGroupV1(group.folder);
    if (left) least = std::min(least.value_or(*left), *left);
  });
  return least;
}

}  // namespace

MemoryAvailable ReadMemoryAvailable(const std::string& root) {
  MemoryAvailable available{std::numeric_limits<int64_t>::max(), "MemAvailable"};
  const std::string meminfo = ReadSystemFile(root + "proc/meminfo").value_or("");
  if (std::optional<int64_t> kib = Field(meminfo, "MemAvailable:")) available.bytes = *kib * 1024;
  std::optional<int64_t> left = LeftInGroups(root);
  if (left && *left < available.bytes) available = {*left, "control group limit"};
  return available;
}

}  // namespace millrace
