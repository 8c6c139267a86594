// Iterates over the lines of a text, without their line ends ("\n" or "\r\n"). One thread.
#pragma once

#include <optional>
#include <string_view>

namespace millrace {

class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  std::optional<std::string_view> Next() {
    if (rest_.empty()) return std::nullopt;
    const size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_;
    return line;
  }
  int number() const { return number_; }  // of the last line given, from 1

 private:
  std::string_view rest_;
  int number_ = 0;
};

}  // namespace millrace
