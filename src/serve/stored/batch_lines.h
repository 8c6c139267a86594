// The lines of batches, in OpenAI's format: requests in a file, and their results. Pure functions,
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"

namespace millrace::serve {

inline constexpr int kBatchRequestsMax = 50'000;
inline constexpr int kBatchErrorsMax = 20;  // that are reported of one file

struct BatchRequest {
  int number = 0;  // of its line, from 1
  std::string custom_id;
  std::string body;  // JSON text, with the client's order of keys
};

struct BatchError {
  int number = 0;
  std::string code, message;
};

// Each line is {"custom_id", "method", "url", "body"}, and every url is `endpoint`. At least one
// error: nothing of the file is run.
std::variant<std::vector<BatchRequest>, std::vector<BatchError>> ParseBatchFile(
    std::string_view text, std::string_view endpoint);

// A line of the output file, or of the error file unless `status` is 200. `body` is the answer,
// `ignored` its IgnoredHeaderValue.
Json BatchResultLine(const std::string& custom_id, int status, Json body,
                     const std::string& ignored);
// A line of the error file for a request that was not answered.
Json BatchErrorLine(const std::string& custom_id, const std::string& code,
                    const std::string& message);

}  // namespace millrace::serve
