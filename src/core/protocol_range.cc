#include "core/protocol_range.h"

#include <fmt/format.h>

#include <charconv>

namespace millrace {

std::string ToText(const ProtocolRange& range) {
  return range.oldest == range.newest ? std::to_string(range.newest)
                                      : fmt::format("{}-{}", range.oldest, range.newest);
}

Result<ProtocolRange> ParseProtocolRange(std::string_view text) {
  const char* const end = text.data() + text.size();
  ProtocolRange range;
  auto read = std::from_chars(text.data(), end, range.oldest);
  range.newest = range.oldest;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, range.newest);
  }
  if (read.ec != std::errc() || read.ptr != end || range.oldest < 0 ||
      range.newest < range.oldest) {
    return InvalidArgument("protocol versions must be a number or a range of numbers");
  }
  return range;
}

Status CheckProtocol(const ProtocolRange& mine, const ProtocolRange& its) {
  if (mine.oldest <= its.newest && its.oldest <= mine.newest) return OkStatus();
  return {StatusCode::kFailedPrecondition,
          fmt::format("protocol version: this process speaks {}, the other {}; run releases that "
                      "are at most one apart on every machine",
                      ToText(mine), ToText(its))};
}

}  // namespace millrace
