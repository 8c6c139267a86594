#include "serve/http/trace_context.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::serve {
namespace {

// "00-" trace id "-" parent id "-" flags. Later versions may add more behind another "-".
constexpr size_t kTraceAt = 3, kTraceChars = 32, kParentAt = 36, kParentChars = 16, kFlagsAt = 53,
                 kChars = 55;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && std::ranges::any_of(text, [](char c) { return c != '0'; });
}

bool IsValid(std::string_view header) {
  if (header.size() < kChars) return false;
  const std::string_view version = header.substr(0, 2);
  const bool longer = header.size() > kChars;
  if (longer && (version == "00" || header[kChars] != '-')) return false;
  return IsHex(version) && version != "ff" && header[2] == '-' && header[kParentAt - 1] == '-' &&
         header[kFlagsAt - 1] == '-' && IsId(header.substr(kTraceAt, kTraceChars)) &&
         IsId(header.substr(kParentAt, kParentChars)) && IsHex(header.substr(kFlagsAt, 2));
}

bool LowBit(char hex) { return ((hex <= '9' ? hex - '0' : hex - 'a' + 10) & 1) != 0; }

}  // namespace

std::string TraceContext::Header() const {
  return fmt::format("00-{}-{}-0{}", trace_id, span_id, sampled ? 1 : 0);
}

TraceContext TraceOf(std::optional<std::string_view> traceparent, std::array<uint64_t, 3> random) {
  TraceContext trace;
  trace.span_id = fmt::format("{:016x}", std::max<uint64_t>(random[0], 1));
  if (traceparent && IsValid(*traceparent)) {
    trace.trace_id = traceparent->substr(kTraceAt, kTraceChars);
    trace.parent_id = traceparent->substr(kParentAt, kParentChars);
    trace.sampled = LowBit((*traceparent)[kFlagsAt + 1]);
    return trace;
  }
  trace.trace_id = fmt::format("{:016x}{:016x}", random[1], std::max<uint64_t>(random[2], 1));
  return trace;
}

}  // namespace millrace::serve
