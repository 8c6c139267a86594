// Quantity: a number with its unit, as people write them in files: "40 GB", "10 Gbit/s", "0.3 ms",
// "3.9 USD/h". A number without a unit, with an unknown one, or outside the sensible range of its
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
  kDuration,   // seconds, of a limit or of a whole run
  kRate,       // requests per second
  kTokens,     // a length; may be fractional, where a mean is meant
  kShare,      // of all: "90 %" is 0.9
};

// The value in the unit named above. The message of an error reads on after what the quantity is:
// "must be ... such as 40 GB, got '40'".
Result<double> ParseQuantity(Quantity kind, std::string_view text);

// The largest unit in which the value is at least 1: "10 Gbit/s". Flows and prices read back as the
// same number to the last bit.
std::string FormatQuantity(Quantity kind, double value);

}  // namespace millrace::plan
