// How much memory this process may still use: the minimum of what the machine has available and
// what its control group leaves. Checked before a model is loaded, so that a model that is too
// large is refused with numbers instead of being killed during loading. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

struct MemoryAvailable {
  int64_t bytes = 0;
  std::string source;  // what says so: "MemAvailable", "control group limit"
};

// `root` is "/" except in tests. INT64_MAX when nothing can be read.
MemoryAvailable ReadMemoryAvailable(const std::string& root = "/");

}  // namespace millrace
