// The YAML config file of the command line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "apps/cli/config_file.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = millrace::apps::ParseConfig({reinterpret_cast<const char*>(data), size});
  if (entries.ok()) {
    for (const auto& [key, entry] : *entries) {
      MR_CHECK(entry.line > 0 && entry.values.size() <= millrace::apps::kConfigValuesMax);
    }
  } else {
    MR_CHECK(entries.status().message().find('\n') == std::string::npos);
  }
  return 0;
}
