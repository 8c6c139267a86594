// Strings and numbers of Python. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::text {

// Whether a string literal begins here: quotes, perhaps after r, b or u.
bool BeginsPythonString(std::string_view text);

// Takes a string literal from the front and returns its text. Nothing is left of a string that does
// not end. A line may end within it, and an escape that Python refuses stays as it is written.
// REQUIRES: BeginsPythonString.
std::optional<std::string> TakePythonString(std::string_view& text);

// Takes a number from the front and returns it as JSON, with all its digits. One with zeros before
// it, which Python refuses, is a string.
std::optional<std::string> TakePythonNumber(std::string_view& text);

// Finds where a list in Python's syntax ends, character by character: at the bracket that closes
// the first one, outside of strings.
class PythonListEnd {
 public:
  bool Take(char c);  // true: the list ends with this character
  bool in_string() const { return quote_ != 0; }

 private:
  void TakeInString(char c);

  int depth_ = 0;
  char quote_ = 0;  // of the string that is open
  int quotes_ = 0;  // that have come in a row
  bool triple_ = false, opening_ = false, escaped_ = false;
};

}  // namespace millrace::text
