// The results file of `generate`, as left by a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "apps/common/results_file.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const auto results = millrace::apps::ScanResults(content);
  if (!results.ok()) return 0;
  const size_t whole = results->whole_bytes;
  MR_CHECK(whole <= size && (whole == 0 || content[whole - 1] == '\n'));
  // The repaired file is complete.
  const auto again = millrace::apps::ScanResults(content.substr(0, whole));
  MR_CHECK(again.ok() && again->whole_bytes == whole && again->ids == results->ids);
  return 0;
}
