// The first byte selects how to cut the rest into pieces; the events must not depend on it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "net/http/sse.h"

namespace {

std::string Events(std::string_view stream, size_t piece_bytes) {
  std::string out;
  millrace::net::SseParser parser([&](std::string_view type, std::string_view data) {
    out.append(type).append("=").append(data).append(";");
  });
  while (!stream.empty()) {
    MR_CHECK(parser.Feed(stream.substr(0, piece_bytes)).ok());
    stream.remove_prefix(std::min(piece_bytes, stream.size()));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data + 1), size - 1);
  MR_CHECK(Events(stream, stream.size()) == Events(stream, 1 + data[0] % 16));
  // The writer produces exactly one event.
  const std::string event = millrace::net::SseEvent(stream);
  int count = 0;
  millrace::net::SseParser parser([&](std::string_view, std::string_view) { ++count; });
  MR_CHECK(parser.Feed(event).ok() && count == 1);
  return 0;
}
