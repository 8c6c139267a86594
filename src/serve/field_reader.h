// FieldReader: typed, range-checked fields out of a JSON object, one line per field. A field that
// is absent or null keeps its default. The first fault is kept and later reads do nothing, so that
// a parser is a straight list of reads with one question at the end. One thread; refers to the
// object.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/api_error.h"

namespace millrace::serve {

class FieldReader {
 public:
  // `prefix` stands before names in errors: "stream_options.".
  explicit FieldReader(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // nullptr when absent or null, or once a fault is kept.
  const Json* Find(const char* name) const;

  void Bool(const char* name, bool& out);
  void Int(const char* name, int64_t low, int64_t high, int& out);
  void Int(const char* name, int64_t low, int64_t high, std::optional<int>& out);
  // Every 64-bit integer, negative ones by their bits.
  void Bits(const char* name, std::optional<uint64_t>& out);
  void Number(const char* name, double& out);
  void String(const char* name, size_t max_bytes, std::string& out);
  void StringOrList(const char* name, std::vector<std::string>& out);
  // Calls `read` with the field when it is an object, an array.
  void Object(const char* name, const std::function<void(const Json&)>& read);
  void Array(const char* name, const std::function<void(const Json&)>& read);
  // Refuses the field when it is set to anything but null, false, "", [] or {}.
  void Unsupported(const char* name, std::string_view instead);

  void Fail(ApiError error);
  void Fail(std::string_view name, std::string message);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void WrongType(const char* name, const char* wanted, const Json& got);

  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// "a string", "an array of 3", "12": what a client sent, in words, bounded.
std::string Describe(const Json& value);

// The integer in [low, high], or what is wrong: "must be an integer in [0, 5], got 7".
struct IntegerOrError {
  int64_t value = 0;
  std::string error;
};
IntegerOrError ReadInteger(const Json& value, int64_t low, int64_t high);

}  // namespace millrace::serve
