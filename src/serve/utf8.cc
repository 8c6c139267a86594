#include "serve/utf8.h"

#include <cstddef>

namespace millrace::serve {
namespace {

// Length of the well-formed sequence at the start of `s`; 0: none.
size_t SequenceLength(std::string_view s) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  auto tail = [&](size_t i) { return i < s.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !tail(1)) return 0;
  if (lead < 0xE0) return 2;
  const unsigned char second = byte(1);
  if (lead < 0xF0) {
    const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F);
    return !bad && tail(2) ? 3 : 0;
  }
  const bool bad = (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return !bad && tail(2) && tail(3) ? 4 : 0;
}

}  // namespace

bool IsUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = SequenceLength(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

int64_t CountCharacters(std::string_view bytes) {
  int64_t count = 0;
  for (unsigned char byte : bytes) count += (byte & 0xC0) != 0x80;
  return count;
}

}  // namespace millrace::serve
