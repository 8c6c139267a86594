// The strict rules on a request's head that are applied before the grammar, byte by byte as it
// arrives: sizes, line ends, and whether this is HTTP at all. Linear in the input.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "net/http1.h"

namespace millrace::net {

class HeadScanner {
 public:
  struct Result {
    bool complete = false;     // the empty line that ends the head has arrived
    size_t skipped_bytes = 0;  // an empty line before the request line, to be dropped
    std::optional<HttpFailure> failure;
  };

  explicit HeadScanner(const HttpLimits& limits) : limits_(limits) {}

  // `data` starts at the request line and grows from call to call.
  Result Scan(std::string_view data);

 private:
  // Checks the line [line_start_, end), which ends before CRLF.
  std::optional<HttpFailure> CheckLine(std::string_view line);
  std::optional<HttpFailure> CheckByte(std::string_view data, size_t i) const;
  std::optional<HttpFailure> CheckSizes(size_t i) const;

  const HttpLimits limits_;
  size_t next_ = 0;        // first byte not looked at
  size_t line_start_ = 0;  // of the current line
  size_t lines_ = 0;       // complete ones, the request line included
  size_t blank_lines_ = 0;
};

}  // namespace millrace::net
