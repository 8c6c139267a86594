#include "text/python_literal.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

#include "text/json_text.h"

namespace millrace::text {
namespace {

constexpr size_t kNumberBytesMax = 4096;

bool IsOneOf(char c, std::string_view any) { return any.find(c) != std::string_view::npos; }

size_t PrefixSize(std::string_view text) {
  size_t size = 0;
  while (size < std::min<size_t>(text.size(), 2) && IsOneOf(text[size], "rRbBuU")) ++size;
  return size;
}

// Code points as UTF-8; halves of a surrogate pair are put together.
class CodePoints {
 public:
  void Add(char byte) {
    EndPair();
    text_ += byte;
  }
  void Add(std::string_view bytes) {
    EndPair();
    text_ += bytes;
  }
  void AddCode(uint32_t code) {
    const bool low = code >= 0xDC00 && code < 0xE000;
    if (high_ != 0 && low) {
      Encode(0x10000 + ((high_ - 0xD800) << 10) + (code - 0xDC00));
      high_ = 0;
      return;
    }
    EndPair();
    if (code >= 0xD800 && code < 0xDC00) {
      high_ = code;
    } else {
      Encode(low || code > 0x10FFFF ? kReplacement : code);
    }
  }
  std::string Take() {
    EndPair();
    return std::move(text_);
  }

 private:
  static constexpr uint32_t kReplacement = 0xFFFD;

  void EndPair() {
    if (high_ == 0) return;
    high_ = 0;
    Encode(kReplacement);
  }
  void Encode(uint32_t code) {
    const auto tail = [this, code](int shift) {
      text_ += static_cast<char>(0x80 | ((code >> shift) & 0x3F));
    };
    if (code < 0x80) {
      text_ += static_cast<char>(code);
    } else if (code < 0x800) {
      text_ += static_cast<char>(0xC0 | (code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      text_ += static_cast<char>(0xE0 | (code >> 12));
      tail(6);
      tail(0);
    } else {
      text_ += static_cast<char>(0xF0 | (code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  std::string text_;
  uint32_t high_ = 0;  // waits for its other half
};

// The number that exactly `size` digits write; nullopt: they are not there.
std::optional<uint32_t> Digits(std::string_view text, size_t size, int base) {
  uint32_t code = 0;
  if (text.size() < size) return std::nullopt;
  const char* const end = text.data() + size;
  const auto [at, error] = std::from_chars(text.data(), end, code, base);
  return error == std::errc() && at == end ? std::optional(code) : std::nullopt;
}

// Takes what follows a backslash.
void TakeEscape(std::string_view& text, bool bytes, CodePoints& out) {
  const char c = text.front();
  constexpr std::string_view kEscapes = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (const size_t simple = kEscapes.find(c); simple != std::string_view::npos) {
    text.remove_prefix(1);
    return out.Add(kMeanings[simple]);
  }
  if (c == '\n' || c == '\r') {  // the line goes on
    text.remove_prefix(text.starts_with("\r\n") ? 2 : 1);
    return;
  }
  size_t begin = 1, size = 0;
  int base = 16;
  if (c == 'x') size = 2;
  if (c == 'u' && !bytes) size = 4;
  if (c == 'U' && !bytes) size = 8;
  if (c >= '0' && c <= '7') {
    begin = 0;
    base = 8;
    const size_t end = text.find_first_not_of("01234567");
    size = std::min<size_t>(3, std::min(end, text.size()));
  }
  const auto code = size > 0 ? Digits(text.substr(begin), size, base) : std::nullopt;
  if (!code) return out.Add('\\');  // no escape
  text.remove_prefix(begin + size);
  if (bytes) {
    out.Add(static_cast<char>(*code));
  } else {
    out.AddCode(*code);
  }
}

std::string WithoutUnderscores(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  return digits;
}

// Digits of another base as decimal ones.
std::optional<std::string> Decimal(std::string_view digits, uint32_t base) {
  constexpr uint32_t kPart = 1'000'000'000;
  std::vector<uint32_t> parts = {0};  // the lowest first
  for (const char c : digits) {
    uint32_t digit = 0;
    const auto [at, error] = std::from_chars(&c, &c + 1, digit, static_cast<int>(base));
    if (error != std::errc() || at != &c + 1) return std::nullopt;
    uint64_t carry = digit;
    for (uint32_t& part : parts) {
      carry += uint64_t{part} * base;
      part = static_cast<uint32_t>(carry % kPart);
      carry /= kPart;
    }
    if (carry > 0) parts.push_back(static_cast<uint32_t>(carry));
  }
  std::string text = std::to_string(parts.back());
  for (size_t i = parts.size() - 1; i-- > 0;) {
    const std::string part = std::to_string(parts[i]);
    text += std::string(9 - part.size(), '0') + part;
  }
  return text;
}

std::optional<std::string> DecimalNumber(std::string digits) {
  if (digits.starts_with('.')) digits.insert(0, "0");
  const size_t exponent = std::min(digits.find_first_of("eE"), digits.size());
  if (exponent > 0 && digits[exponent - 1] == '.') digits.insert(exponent, "0");
  const bool real = digits.find_first_of(".eE") != std::string::npos;
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  if (zeros > 0 && real) {
    const bool keep_one = zeros == digits.size() || digits[zeros] < '0' || digits[zeros] > '9';
    digits.erase(0, keep_one ? zeros - 1 : zeros);
  } else if (zeros == digits.size()) {
    digits = "0";
  } else if (zeros > 0) {
    return JsonString(digits);
  }
  return CompactJson(digits);
}

}  // namespace

bool BeginsPythonString(std::string_view text) {
  text.remove_prefix(PrefixSize(text));
  return text.starts_with('"') || text.starts_with('\'');
}

std::optional<std::string> TakePythonString(std::string_view& text) {
  const std::string_view prefix = text.substr(0, PrefixSize(text));
  const bool raw = prefix.find_first_of("rR") != std::string_view::npos;
  const bool bytes = prefix.find_first_of("bB") != std::string_view::npos;
  text.remove_prefix(prefix.size());
  std::string quotes(3, text.front());
  if (!text.starts_with(quotes)) quotes.resize(1);
  text.remove_prefix(quotes.size());
  CodePoints out;
  while (!text.empty() && !text.starts_with(quotes)) {
    if (text.front() != '\\' || text.size() < 2) {
      out.Add(text.front());
      text.remove_prefix(1);
    } else if (raw) {  // a quote after a backslash does not end it
      out.Add(text.substr(0, 2));
      text.remove_prefix(2);
    } else {
      text.remove_prefix(1);
      TakeEscape(text, bytes, out);
    }
  }
  if (text.empty()) return std::nullopt;
  text.remove_prefix(quotes.size());
  return out.Take();
}

std::optional<std::string> TakePythonNumber(std::string_view& text) {
  bool negative = false;
  while (!text.empty() && IsOneOf(text.front(), "+- \t")) {
    negative ^= text.front() == '-';
    text.remove_prefix(1);
  }
  size_t size = 0;
  const auto within = [](char c) {
    return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  };
  const auto has_base = [&] {
    return text.size() > 1 && text[0] == '0' && IsOneOf(text[1], "xXoObB");
  };
  while (size < text.size() &&
         (within(text[size]) || (size > 0 && !has_base() && IsOneOf(text[size], "+-") &&
                                 IsOneOf(text[size - 1], "eE")))) {
    ++size;
  }
  const std::string digits = WithoutUnderscores(text.substr(0, size));
  const uint32_t base = !has_base()              ? 10
                        : IsOneOf(text[1], "xX") ? 16
                        : IsOneOf(text[1], "oO") ? 8
                                                 : 2;
  text.remove_prefix(size);
  if (digits.empty() || size > kNumberBytesMax) return std::nullopt;
  if (base != 10 && digits.size() == 2) return std::nullopt;
  auto number =
      base == 10 ? DecimalNumber(digits) : Decimal(std::string_view(digits).substr(2), base);
  if (!number || !negative) return number;
  return number->insert(number->starts_with('"') ? 1 : 0, "-");
}

bool PythonListEnd::Take(char c) {
  if (quote_ != 0) {
    TakeInString(c);
    if (quote_ != 0) return false;
    if (c == '"' || c == '\'') return false;  // the string's end, or the beginning of another
  } else if (c == '"' || c == '\'') {
    quote_ = c;
    quotes_ = 1;
    opening_ = true;
    triple_ = escaped_ = false;
    return false;
  }
  if (c == '[') ++depth_;
  return c == ']' && --depth_ == 0;
}

// Closes the string when `c` ends it or comes after an empty one.
void PythonListEnd::TakeInString(char c) {
  if (opening_) {  // after one or two quotes
    if (c == quote_) {
      triple_ = ++quotes_ == 3;
      if (triple_) {
        opening_ = false;
        quotes_ = 0;
      }
      return;
    }
    opening_ = false;
    if (quotes_ == 2) {
      quote_ = 0;
      if (c == '"' || c == '\'') {  // another string begins
        quote_ = c;
        quotes_ = 1;
        opening_ = true;
      }
      return;
    }
    quotes_ = 0;
  }
  if (escaped_) {
    escaped_ = false;
    quotes_ = 0;
  } else if (c == '\\') {
    escaped_ = true;
    quotes_ = 0;
  } else if (c == quote_) {
    if (++quotes_ == (triple_ ? 3 : 1)) quote_ = 0;
  } else {
    quotes_ = 0;
  }
}

}  // namespace millrace::text
