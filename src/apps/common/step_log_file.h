// The file of `serve --step-log`: one line per scheduling decision, written at once. A failed
// write, as on a full disk, ends the log with one warning; the server continues. Called under the
// controller's lock.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::apps {

// Creates or truncates `path` and returns a function that appends a line to it. The file is closed
// with the function's last copy.
Result<std::function<void(std::string_view)>> OpenStepLog(const std::string& path);

}  // namespace millrace::apps
