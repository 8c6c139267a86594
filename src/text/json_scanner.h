// JsonScanner: follows one JSON value character by character, strictly as RFC 8259 has it, and
// writes it as it comes. Small mistakes that models make within strings and words are mended, so
// that what is written is JSON: line ends and other control characters in strings, escapes that
// JSON lacks, halves of surrogate pairs, and True, False and None.
//
// A value; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::text {

inline constexpr size_t kJsonNestingMax = 256;

class JsonScanner {
 public:
  enum class Step {
    kMore,
    kDone,   // the value ends with this character
    kAfter,  // a number or word ended before this character, which is not taken
    kBad,    // this character is a mistake, and is not taken
  };
  // Appends to `out` what is known of the value: the text itself unless something was mended.
  Step Take(char c, std::string& out);
  // What has been taken and not written, because its meaning was not known yet.
  std::string Held() const;

 private:
  enum class Wants { kValue, kValueOrEnd, kKey, kKeyOrEnd, kColon, kCommaOrEnd };
  enum class Number { kSign, kZero, kWhole, kPoint, kFraction, kE, kESign, kExponent };

  Step TakeInString(char c, std::string& out);
  Step TakeEscape(char c, std::string& out);
  void EndCode(std::string& out);
  void FlushHigh(std::string& out);
  Step TakeInWord(char c, std::string& out);
  Step TakeInNumber(char c, std::string& out);
  Step Begin(char c, std::string& out);
  Step Close(char c, std::string& out);
  Step EndValue();
  Step AfterScalar(char c, std::string& out);

  std::string open_;  // the brackets
  Wants wants_ = Wants::kValue;
  bool string_ = false, key_ = false;
  bool number_ = false;
  Number at_ = Number::kSign;
  std::string_view word_;  // that is being written, as the model may write it; empty: none
  size_t word_taken_ = 0;
  std::string escape_;  // from its backslash on
  std::string high_;    // the escape of a high surrogate that waits for its other half
};

// The text of a JSON object, mended; {} for blank text. nullopt: it is none.
std::optional<std::string> MendedObject(std::string_view text);

}  // namespace millrace::text
