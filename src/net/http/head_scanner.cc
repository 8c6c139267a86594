#include "net/http/head_scanner.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::net {
namespace {

constexpr size_t kBlankLinesMax = 2;    // RFC 9112 section 2.2 asks to ignore at least one
constexpr size_t kMethodBytesMax = 32;  // the longest registered method has 17
constexpr size_t kRequestLineExtra = kMethodBytesMax + sizeof(" HTTP/1.1");

HttpFailure NotHttp() { return {400, "this is not an HTTP/1.1 request"}; }

bool IsMethodByte(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-'; }

}  // namespace

std::optional<HttpFailure> HeadScanner::CheckByte(std::string_view data, size_t i) const {
  const char c = data[i];
  const char before = i > line_start_ ? data[i - 1] : '\0';
  if (before == '\r' && c != '\n') return HttpFailure{400, "the request head contains a bare CR"};
  if (c == '\n' && before != '\r') {
    if (lines_ == 0) return NotHttp();
    return HttpFailure{400, "lines of the request head must end with CRLF"};
  }
  if (c == '\0') {
    return lines_ == 0 ? NotHttp() : HttpFailure{400, "the request head contains a NUL byte"};
  }
  if (lines_ == 0) {
    const auto byte = static_cast<unsigned char>(c);
    const bool line_end = c == '\r' || c == '\n';
    if (!line_end && (byte < 0x20 || byte > 0x7e)) return NotHttp();
    if (i == line_start_ && !line_end && !IsMethodByte(c)) return NotHttp();
  } else if (i == line_start_ && (c == ' ' || c == '\t')) {
    return HttpFailure{400, "folded header lines are not allowed"};
  }
  return std::nullopt;
}

std::optional<HttpFailure> HeadScanner::CheckSizes(size_t i) const {
  if (lines_ == 0 && i - line_start_ > limits_.target_bytes_max + kRequestLineExtra) {
    return HttpFailure{
        414, fmt::format("the request target is longer than {} bytes", limits_.target_bytes_max)};
  }
  if (i >= limits_.head_bytes_max) {
    return HttpFailure{431, fmt::format("the request head is larger than the limit of {} bytes",
                                        limits_.head_bytes_max)};
  }
  return std::nullopt;
}

std::optional<HttpFailure> HeadScanner::CheckLine(std::string_view line) {
  if (lines_ > limits_.headers_max) {
    return HttpFailure{431, fmt::format("more than {} headers", limits_.headers_max)};
  }
  if (lines_ > 0) return std::nullopt;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || first > kMethodBytesMax) return NotHttp();
  const std::string_view version = line.substr(last + 1);
  if (!version.starts_with("HTTP/")) return NotHttp();
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return HttpFailure{505, "only HTTP/1.1 and HTTP/1.0 are supported"};
  }
  if (last - first - 1 > limits_.target_bytes_max) {
    return HttpFailure{414, fmt::format("the request target has {} bytes; the limit is {}",
                                        last - first - 1, limits_.target_bytes_max)};
  }
  return std::nullopt;
}

HeadScanner::Result HeadScanner::Scan(std::string_view data) {
  for (size_t i = next_; i < data.size(); ++i) {
    auto failure = CheckByte(data, i);
    if (!failure) failure = CheckSizes(i);
    if (failure) return {.failure = std::move(failure)};
    if (data[i] != '\n') continue;
    const std::string_view line = data.substr(line_start_, i - 1 - line_start_);
    if (line.empty() && lines_ > 0) return {.complete = true};
    if (line.empty()) {
      if (++blank_lines_ > kBlankLinesMax) return {.failure = NotHttp()};
      next_ = 0;
      return {.skipped_bytes = i + 1};
    }
    if (failure = CheckLine(line); failure) return {.failure = std::move(failure)};
    ++lines_;
    line_start_ = i + 1;
  }
  next_ = data.size();
  return {};
}

}  // namespace millrace::net
