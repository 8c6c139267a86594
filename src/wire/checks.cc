#include "wire/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "wire/limits.h"

namespace millrace::wire {
namespace {

bool Control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

}  // namespace

Status OutOfRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  return InvalidArgument(fmt::format("{} must be in [{}, {}], got {}", field, low, high, value));
}

Status CheckCount(std::string_view field, size_t count, size_t max) {
  if (count <= max) return OkStatus();
  return InvalidArgument(fmt::format("{} has {} entries, the limit is {}", field, count, max));
}

Status Missing(std::string_view field) {
  return InvalidArgument(fmt::format("{} is missing", field));
}

Status TakeText(std::string_view field, const std::string& value, size_t max_bytes,
                std::string& out) {
  if (value.size() > max_bytes) {
    return InvalidArgument(
        fmt::format("{} has {} bytes, the limit is {}", field, value.size(), max_bytes));
  }
  if (std::any_of(value.begin(), value.end(), Control)) {
    return InvalidArgument(fmt::format("{} holds control characters", field));
  }
  out = value;
  return OkStatus();
}

Status TakeAddress(std::string_view field, const std::string& value, std::string& out) {
  MR_RETURN_IF_ERROR(TakeText(field, value, kNameBytesMax, out));
  if (out.empty()) return OkStatus();
  const size_t colon = out.rfind(':');
  if (colon == 0 || colon == std::string::npos ||
      !IsPort(std::string_view(out).substr(colon + 1))) {
    return InvalidArgument(fmt::format("{} must be host:port", field));
  }
  return OkStatus();
}

Status TakeDuration(std::string_view field, uint64_t ns, Duration& out) {
  return Take(field, ns, out.ns, 0, static_cast<uint64_t>(kDurationMax.ns));
}

Status TakeIndices(std::string_view field, const google::protobuf::RepeatedField<uint32_t>& from,
                   size_t max, std::vector<int32_t>& out) {
  MR_RETURN_IF_ERROR(CheckCount(field, static_cast<size_t>(from.size()), max));
  uint32_t all = 0;
  for (const uint32_t value : from) all |= value;
  if (all > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument(fmt::format("{} holds a number beyond 2147483647", field));
  }
  out.assign(from.begin(), from.end());
  return OkStatus();
}

std::string Element(std::string_view field, int index) {
  return fmt::format("{}[{}]", field, index);
}

}  // namespace millrace::wire
