// Request logs and answers that `millrace verify` compares: no text may crash it, and whatever is
// read asks for something that is JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "apps/verify/verify.h"
#include "base/check.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::apps;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto lines = ParseRequestLog(text);
  if (!lines.ok()) return 0;
  for (const LoggedLine& line : *lines) {
    MR_CHECK(millrace::ParseJson(line.body).ok());
    (void)Compare(line, 200, text.substr(0, text.find('\n')));
  }
  return 0;
}
