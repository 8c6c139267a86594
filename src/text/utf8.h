// Utf8Stream: bytes in, valid UTF-8 out, one U+FFFD for each maximal invalid piece, exactly as
// decoding the whole at once gives (Unicode 15, section 3.9; Rust's from_utf8_lossy). One thread.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool IsValidUtf8(std::string_view text);

class Utf8Stream {
 public:
  // Appends to `out` what `bytes` completes.
  void Push(std::string_view bytes, std::string& out);
  // The end: an incomplete character becomes U+FFFD.
  void Flush(std::string& out);

  // The incomplete character at the end of what was pushed: 0 to 3 bytes.
  std::string_view pending() const { return {pending_, pending_size_}; }
  // Starts with an incomplete character that somebody else has already shown as U+FFFD: it is
  // emitted if it gets completed, and is silent if not.
  void Adopt(std::string_view pending);

 private:
  void Fail(std::string& out);

  char pending_[4] = {};
  size_t pending_size_ = 0;
  bool adopted_ = false;  // the pending character began before this stream
};

}  // namespace millrace::text
