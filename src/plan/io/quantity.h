// Quantity: a number with its unit, as people write it in files: "40 GB", "10 Gbit/s", "0.3 ms",
// "3.9 USD/h". A number without a unit, with an unknown unit, or outside the sensible range of its
// kind is an error that says what is allowed. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::plan {

enum class Quantity {
  kMemory,     // bytes of one device
  kBandwidth,  // bytes per second; "Gbit/s" and "Gbps" are 10^9 bits, "GB/s" 10^9 bytes
  kLatency,    // seconds
  kPrice,      // USD per hour
  kFlow,       // tokens per second
  kDuration,   // seconds, of a limit or a whole run
  kRate,       // requests per second
  kTokens,     // a length; a mean may be fractional
  kShare,      // of a whole: "90 %" is 0.9
};

// The value in the unit named above. The error message continues the quantity's name: "must be ...
// such as 40 GB, got '40'".
Result<double> ParseQuantity(Quantity kind, std::string_view text);

// Uses the largest unit in which the value is at least 1: "10 Gbit/s". Flows and prices read back
// exactly to the last bit.
std::string FormatQuantity(Quantity kind, double value);

}  // namespace millrace::plan
