// Numbers as people write and read them: "2GiB", "1.5 GB/s", "00:42". Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

// "1048576", "512MiB", "2GiB", "1.5GB", "4G": K/M/G/T with iB are powers of 1024, with B alone or
// nothing powers of 1000. At least 0 and below 2^62.
Result<int64_t> ParseBytes(std::string_view text);

// The whole text must parse: no prefix, no rounding.
Result<int64_t> ParseInt(std::string_view text);
Result<uint64_t> ParseUint(std::string_view text);
Result<double> ParseReal(std::string_view text);  // finite, or "inf"

std::string FormatBytes(int64_t bytes);      // "1.50 GiB"
std::string BytesText(int64_t bytes);        // "2.5 GB": powers of 1000, one digit
std::string FormatDuration(double seconds);  // "7s", "2m05s", "3h12m"
std::string FormatCount(int64_t n);          // "1,234,567"
std::string FormatParameters(int64_t n);     // "1.24 B", "125 M"
std::string FormatReal(double value);        // shortest text that reads back: "0.9", "inf"

}  // namespace millrace
