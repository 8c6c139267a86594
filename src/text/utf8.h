// Utf8Stream: bytes in, valid UTF-8 out. Each maximal invalid piece becomes one U+FFFD, exactly as
// when the whole is decoded at once (Unicode 15, section 3.9; Rust's from_utf8_lossy). One thread.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool IsValidUtf8(std::string_view text);

class Utf8Stream {
 public:
  // Appends to `out` the text that `bytes` completes.
  void Push(std::string_view bytes, std::string& out);
  // Ends the stream: an incomplete character becomes U+FFFD.
  void Flush(std::string& out);

  // The incomplete character at the end of the input: 0 to 3 bytes.
  std::string_view pending() const { return {pending_, pending_size_}; }
  // Starts with an incomplete character that was already shown elsewhere as U+FFFD. It is emitted
  // if it is completed, and ignored otherwise.
  void Adopt(std::string_view pending);

 private:
  void Fail(std::string& out);

  char pending_[4] = {};
  size_t pending_size_ = 0;
  bool adopted_ = false;  // the pending character began before this stream
};

}  // namespace millrace::text
