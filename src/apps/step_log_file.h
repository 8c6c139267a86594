// The file behind `serve --step-log`: lines from the engine, buffered. A full disk ends the log
// with one warning and never the server. Calls come under the engine's lock.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::apps {

// Opens `path` anew and returns what writes a line to it; the file closes with the last copy.
Result<std::function<void(std::string_view)>> OpenStepLog(const std::string& path);

}  // namespace millrace::apps
