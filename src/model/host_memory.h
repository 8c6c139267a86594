// How much memory this process may still take: the least of what the machine has available and what
// its control group leaves. Asked before a model is loaded, so that too large a model is refused
// with numbers instead of being killed half-way. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::model {

struct MemoryAvailable {
  int64_t bytes = 0;
  std::string source;  // "MemAvailable" or "control group limit"
};

// `root` is "/" but in tests. INT64_MAX when nothing can be read.
MemoryAvailable ReadMemoryAvailable(const std::string& root = "/");

// "2.5 GB": powers of 1000, one digit.
std::string BytesText(int64_t bytes);

}  // namespace millrace::model
