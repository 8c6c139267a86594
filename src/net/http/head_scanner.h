// HeadScanner: the strict checks of a request's head that run before the grammar is parsed, byte by
// byte as the head arrives: sizes, line ends, and whether it is HTTP at all. Linear in the input.
// Owned by one RequestParser; one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "net/http/http1.h"

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
  // Checks one complete line, without its CRLF.
  std::optional<HttpFailure> CheckLine(std::string_view line);
  std::optional<HttpFailure> CheckByte(std::string_view data, size_t i) const;
  std::optional<HttpFailure> CheckSizes(size_t i) const;

  const HttpLimits limits_;
  size_t next_ = 0;        // the first byte not scanned yet
  size_t line_start_ = 0;  // of the current line
  size_t lines_ = 0;       // complete ones, the request line included
  size_t blank_lines_ = 0;
};

}  // namespace millrace::net
