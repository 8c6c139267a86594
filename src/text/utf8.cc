#include "text/utf8.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace millrace::text {
namespace {

struct Range {
  uint8_t lo, hi;
};

// Bytes of the character that starts with `lead`; 0 when no character starts with it.
size_t LengthOf(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The valid second bytes: they exclude overlong forms, surrogates and code points beyond U+10FFFF.
Range SecondByte(uint8_t lead) {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {0x80, 0xBF};
  }
}

}  // namespace

void Utf8Stream::Fail(std::string& out) {
  if (!adopted_) out += kReplacementCharacter;
  pending_size_ = 0;
  adopted_ = false;
}

void Utf8Stream::Push(std::string_view bytes, std::string& out) {
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (pending_size_ > 0) {
      const auto lead = static_cast<uint8_t>(pending_[0]);
      const Range range = pending_size_ == 1 ? SecondByte(lead) : Range{0x80, 0xBF};
      if (byte >= range.lo && byte <= range.hi) {
        pending_[pending_size_++] = c;
        if (pending_size_ == LengthOf(lead)) {
          out.append(pending_, pending_size_);
          pending_size_ = 0;
          adopted_ = false;
        }
        continue;
      }
      Fail(out);  // then handle this byte as a first byte
    }
    if (byte < 0x80) {
      out += c;
    } else if (LengthOf(byte) == 0) {
      Fail(out);
    } else {
      pending_[0] = c;
      pending_size_ = 1;
    }
  }
}

void Utf8Stream::Flush(std::string& out) {
  if (pending_size_ > 0) Fail(out);
}

void Utf8Stream::Adopt(std::string_view pending) {
  MR_CHECK(pending.size() < sizeof(pending_)) << "the pending bytes must be part of one character";
  pending_size_ = pending.size();
  std::copy(pending.begin(), pending.end(), pending_);
  adopted_ = !pending.empty();
}

bool IsValidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string out;
  stream.Push(text, out);
  return stream.pending().empty() && out == text;
}

}  // namespace millrace::text
