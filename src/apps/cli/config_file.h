// The YAML config file: a flat map from option names to values, with the same names as on the
// command line. Untrusted text: size and depth are bounded, and every error names the line. Any
// thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::apps {

inline constexpr size_t kConfigBytesMax = 1 << 20;
inline constexpr size_t kConfigValuesMax = 4096;  // entries in a list

struct ConfigEntry {
  std::vector<std::string> values;
  int line = 0;  // from 1
};
// Keys with '-' ('_' is read as '-').
using ConfigEntries = std::map<std::string, ConfigEntry>;

Result<ConfigEntries> ParseConfig(std::string_view yaml);

}  // namespace millrace::apps
