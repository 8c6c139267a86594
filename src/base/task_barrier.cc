#include "base/task_barrier.h"

#include <exception>

#include "base/log.h"

namespace millrace {

void LogTaskException(const char* what) noexcept {
  try {  // a line needs memory, and there may be none
    try {
      throw;
    } catch (const std::exception& error) {
      MR_LOG(error, "{} ended with an exception: {}", what, Printable(error.what()));
    } catch (...) {
      MR_LOG(error, "{} ended with an exception that is no std::exception", what);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace millrace
