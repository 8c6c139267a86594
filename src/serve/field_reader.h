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

  // nullptr when absent or null, or once a fault is kept. Every read looks its field up here, so
  // that a field which was never looked up is one that no parser knows.
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
  // The field is taken and has no effect. It counts as ignored when it is set to anything but null
  // and `usual`.
  void Ignore(const char* name, const Json& usual = nullptr);
  // The field counts as ignored.
  void AddIgnored(const char* name) { ignored_.push_back(prefix_ + name); }
  // What counts as ignored in an object inside this one.
  void AddIgnoredOf(const FieldReader& inner);
  // What counts as ignored, and every field that is set and was never looked up; at most `max`.
  std::vector<std::string> IgnoredFields(size_t max) const;

  void Fail(ApiError error);
  void Fail(std::string_view name, std::string message);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void WrongType(const char* name, const char* wanted, const Json& got);

  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
  mutable std::vector<std::string_view> known_;  // names that were looked up: literals
  std::vector<std::string> ignored_;
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
