// Step logs: every parsed log can be written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sched/step_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::sched;
  const auto log = ParseStepLog({reinterpret_cast<const char*>(data), size});
  if (!log.ok()) return 0;
  std::string again = EncodeHeader(log->options) + '\n';
  for (const LogEntry& entry : log->entries) (again += EncodeEntry(entry)) += '\n';
  MR_CHECK(ParseStepLog(again).ok()) << "what was written is not read back";
  return 0;
}
