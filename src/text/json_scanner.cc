#include "text/json_scanner.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace millrace::text {
namespace {

using Step = JsonScanner::Step;

bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

constexpr std::string_view kWords[] = {"true", "false", "null", "True", "False", "None"};

std::string_view MeaningOf(std::string_view word) {
  if (word == "True") return "true";
  if (word == "False") return "false";
  return word == "None" ? "null" : word;
}

// A control character as JSON wants it in a string.
void AddControl(char c, std::string& out) {
  switch (c) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
  }
}

}  // namespace

Step JsonScanner::Take(char c, std::string& out) {
  if (string_) return TakeInString(c, out);
  if (!word_.empty()) return TakeInWord(c, out);
  if (number_) return TakeInNumber(c, out);
  if (IsJsonSpace(c)) {
    out += c;
    return Step::kMore;
  }
  switch (wants_) {
    case Wants::kValueOrEnd:
      if (c == ']') return Close(c, out);
      return Begin(c, out);
    case Wants::kValue: return Begin(c, out);
    case Wants::kKeyOrEnd:
      if (c == '}') return Close(c, out);
      [[fallthrough]];
    case Wants::kKey:
      if (c != '"') return Step::kBad;
      string_ = key_ = true;
      break;
    case Wants::kColon:
      if (c != ':') return Step::kBad;
      wants_ = Wants::kValue;
      break;
    case Wants::kCommaOrEnd:
      if (c == ',') {
        wants_ = open_.back() == '{' ? Wants::kKey : Wants::kValue;
        break;
      }
      if (c == '}' || c == ']') return Close(c, out);
      return Step::kBad;
  }
  out += c;
  return Step::kMore;
}

Step JsonScanner::Begin(char c, std::string& out) {
  if (c == '{' || c == '[') {
    if (open_.size() == kJsonNestingMax) return Step::kBad;
    open_ += c;
    wants_ = c == '{' ? Wants::kKeyOrEnd : Wants::kValueOrEnd;
  } else if (c == '"') {
    string_ = true;
  } else if (c == '-' || IsDigit(c)) {
    number_ = true;
    at_ = c == '-' ? Number::kSign : c == '0' ? Number::kZero : Number::kWhole;
  } else {
    for (const std::string_view word : kWords) {
      if (word[0] == c) word_ = word;
    }
    word_taken_ = 1;
    return word_.empty() ? Step::kBad : Step::kMore;
  }
  out += c;
  return Step::kMore;
}

Step JsonScanner::Close(char c, std::string& out) {
  if (open_.back() != (c == '}' ? '{' : '[')) return Step::kBad;
  open_.pop_back();
  out += c;
  return EndValue();
}

Step JsonScanner::EndValue() {
  wants_ = Wants::kCommaOrEnd;
  return open_.empty() ? Step::kDone : Step::kMore;
}

Step JsonScanner::AfterScalar(char c, std::string& out) {
  const Step step = EndValue();
  return step == Step::kDone ? Step::kAfter : Take(c, out);
}

Step JsonScanner::TakeInWord(char c, std::string& out) {
  if (word_taken_ < word_.size()) {
    if (c != word_[word_taken_]) return Step::kBad;
    if (++word_taken_ == word_.size()) out += MeaningOf(word_);
    return Step::kMore;
  }
  word_ = {};
  return AfterScalar(c, out);
}

Step JsonScanner::TakeInNumber(char c, std::string& out) {
  const auto next = [&](Number at) {
    at_ = at;
    out += c;
    return Step::kMore;
  };
  const bool e = c == 'e' || c == 'E';
  switch (at_) {
    case Number::kSign:
      if (IsDigit(c)) return next(c == '0' ? Number::kZero : Number::kWhole);
      return Step::kBad;
    case Number::kWhole:
      if (IsDigit(c)) return next(Number::kWhole);
      [[fallthrough]];
    case Number::kZero:
      if (c == '.') return next(Number::kPoint);
      if (e) return next(Number::kE);
      break;
    case Number::kPoint:
      if (IsDigit(c)) return next(Number::kFraction);
      return Step::kBad;
    case Number::kFraction:
      if (IsDigit(c)) return next(Number::kFraction);
      if (e) return next(Number::kE);
      break;
    case Number::kE:
      if (c == '+' || c == '-') return next(Number::kESign);
      [[fallthrough]];
    case Number::kESign:
      if (IsDigit(c)) return next(Number::kExponent);
      return Step::kBad;
    case Number::kExponent:
      if (IsDigit(c)) return next(Number::kExponent);
      break;
  }
  number_ = false;
  return AfterScalar(c, out);
}

Step JsonScanner::TakeInString(char c, std::string& out) {
  if (!escape_.empty()) return TakeEscape(c, out);
  if (c == '\\') {
    escape_ = c;
    return Step::kMore;
  }
  FlushHigh(out);
  if (c != '"') {
    if (static_cast<unsigned char>(c) < 0x20) {
      AddControl(c, out);
    } else {
      out += c;
    }
    return Step::kMore;
  }
  out += c;
  string_ = false;
  if (!std::exchange(key_, false)) return EndValue();
  wants_ = Wants::kColon;
  return Step::kMore;
}

Step JsonScanner::TakeEscape(char c, std::string& out) {
  if (escape_.size() == 1) {
    if (c == 'u') {
      escape_ += c;
      return Step::kMore;
    }
    FlushHigh(out);
    escape_.clear();
    if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
      out += '\\';
      out += c;
      return Step::kMore;
    }
    if (c != '\'') out += "\\\\";  // no escape: the backslash itself was meant
    return TakeInString(c, out);
  }
  if (IsHexDigit(c)) {
    escape_ += c;
    if (escape_.size() == 6) EndCode(out);
    return Step::kMore;
  }
  FlushHigh(out);
  out += "\\" + std::exchange(escape_, {});
  return TakeInString(c, out);
}

// Of \uXXXX.
void JsonScanner::EndCode(std::string& out) {
  const std::string escape = std::exchange(escape_, {});
  uint32_t code = 0;
  std::from_chars(escape.data() + 2, escape.data() + 6, code, 16);
  const bool low = code >= 0xDC00 && code < 0xE000;
  if (low && !high_.empty()) {
    out += std::exchange(high_, {}) + escape;
    return;
  }
  FlushHigh(out);
  if (code >= 0xD800 && code < 0xDC00) {
    high_ = escape;
  } else {
    out += low ? "\\ufffd" : escape;
  }
}

void JsonScanner::FlushHigh(std::string& out) {
  if (!std::exchange(high_, {}).empty()) out += "\\ufffd";
}

std::string JsonScanner::Held() const {
  if (!word_.empty() && word_taken_ < word_.size())
    return std::string(word_.substr(0, word_taken_));
  return high_ + escape_;
}

std::optional<std::string> MendedObject(std::string_view text) {
  constexpr std::string_view kBlank = " \n\r\t";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return "{}";
  if (text[first] != '{') return std::nullopt;
  JsonScanner scanner;
  std::string object;
  for (size_t i = first; i < text.size(); ++i) {
    const Step step = scanner.Take(text[i], object);
    if (step == Step::kBad) return std::nullopt;
    if (step != Step::kDone) continue;
    const bool whole = text.find_first_not_of(kBlank, i + 1) == std::string_view::npos;
    return whole ? std::optional(object) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace millrace::text
