// Request bodies that clients have compressed with gzip (RFC 1952). Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::serve {

// Whether the value of a Content-Encoding header is gzip, or x-gzip, its older name.
bool IsGzip(std::string_view coding);

// The bytes of all members. kTooLarge as soon as there are more than `bytes_max`; kInvalidArgument
// for a body that is not gzip, is damaged, or ends too early.
Result<std::string> InflateGzip(std::string_view body, size_t bytes_max);

}  // namespace millrace::serve
