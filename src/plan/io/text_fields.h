// Lines and fields of a plain text file, with their positions for error messages. One thread.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace millrace::plan {

// A part of a line and its position; line and column count from 1.
struct Field {
  std::string_view text;
  int line = 0, column = 0;
};

// "NAME:LINE:COLUMN: message", the form of every error of plan/io.
inline Status ErrorAt(std::string_view name, int line, int column, std::string_view message) {
  return InvalidArgument(fmt::format("{}:{}:{}: {}", Printable(name), line, column, message));
}
inline Status ErrorAt(std::string_view name, const Field& field, std::string_view message) {
  return ErrorAt(name, field.line, field.column, message);
}

// The whole text as a finite number; none for anything else.
inline std::optional<double> NumberIn(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}
inline std::optional<int64_t> IntegerIn(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

inline std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Walks the lines of a text, skipping blank ones and those that begin with '#'.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {}

  // False at the end; line() is then the last line's number.
  bool Next() {
    while (at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      current_ = text_.substr(at_, end - at_);
      at_ = end + 1;
      ++line_;
      const std::string_view content = Trimmed(current_);
      if (!content.empty() && content.front() != '#') return true;
    }
    current_ = {};
    return false;
  }
  int line() const { return line_; }
  std::string_view text() const { return current_; }
  Field content() const { return Piece(Trimmed(current_)); }
  // A part of text(), with its column.
  Field Piece(std::string_view part) const {
    const auto column = part.empty() ? 1 : static_cast<int>(part.data() - current_.data()) + 1;
    return {part, line_, column};
  }
  // The words between spaces.
  std::vector<Field> Fields() const {
    std::vector<Field> fields;
    constexpr std::string_view kBlank = " \t\r";
    size_t at = current_.find_first_not_of(kBlank);
    while (at != std::string_view::npos) {
      const size_t end = std::min(current_.find_first_of(kBlank, at), current_.size());
      fields.push_back(Piece(current_.substr(at, end - at)));
      at = current_.find_first_not_of(kBlank, end);
    }
    return fields;
  }

 private:
  std::string_view text_, current_;
  size_t at_ = 0;
  int line_ = 0;
};

}  // namespace millrace::plan
