// Checks of single fields from outside; errors name the field. Used by wire and by the formats of
// cluster that are protocol buffers.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace millrace::wire {

Status OutOfRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high);
Status CheckCount(std::string_view field, size_t count, size_t max);
Status Missing(std::string_view field);

// Stores `value` in `out` if it is in [low, high].
template <typename Int>
Status Take(std::string_view field, uint64_t value, Int& out, uint64_t low = 0,
            uint64_t high = static_cast<uint64_t>(std::numeric_limits<Int>::max())) {
  if (value < low || value > high) return OutOfRange(field, value, low, high);
  out = static_cast<Int>(value);
  return OkStatus();
}

// At most `max_bytes` bytes without control characters.
Status TakeText(std::string_view field, const std::string& value, size_t max_bytes,
                std::string& out);
// As TakeText: "host:port", or nothing.
Status TakeAddress(std::string_view field, const std::string& value, std::string& out);
// In [0, kDurationMax].
Status TakeDuration(std::string_view field, uint64_t ns, Duration& out);
// At most `max` numbers that fit int32_t.
Status TakeIndices(std::string_view field, const google::protobuf::RepeatedField<uint32_t>& from,
                   size_t max, std::vector<int32_t>& out);

// "ranks[2]": call it only on errors.
std::string Element(std::string_view field, int index);

}  // namespace millrace::wire

// As MR_RETURN_IF_ERROR, with the name of the surrounding field in front of the error.
#define MR_RETURN_WITHIN(field, expr)                                                 \
  do {                                                                                \
    if (::millrace::Status mr_s = (expr); !mr_s.ok()) return mr_s.WithContext(field); \
  } while (0)
