#include "apps/common/step_log_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/log.h"
#include "base/private_file.h"

namespace millrace::apps {

Result<std::function<void(std::string_view)>> OpenStepLog(const std::string& path) {
  MakePrivateFile(path);  // it has the prompts' tokens
  auto file = std::make_shared<std::ofstream>(path, std::ios::binary | std::ios::trunc);
  if (!*file) {
    return InvalidArgument(
        fmt::format("cannot write --step-log {}: {}", Printable(path), std::strerror(errno)));
  }
  return std::function<void(std::string_view)>([file, path](std::string_view line) {
    if (!*file) return;
    // Flushed for each line: the last decisions matter most after the process was killed.
    file->write(line.data(), static_cast<std::streamsize>(line.size())).put('\n').flush();
    if (!*file) MR_LOG(warn, "cannot write to the step log {}; it ends here", Printable(path));
  });
}

}  // namespace millrace::apps
