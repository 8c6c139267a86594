// FieldReader: reads typed, range-checked fields from a JSON object, one line per field. A field
// that is absent or null keeps its default. After the first error, later reads do nothing, so a
// parser is a plain list of reads with one check at the end. One thread; refers to the object,
// which must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

class FieldReader {
 public:
  // `prefix` precedes field names in errors: "stream_options.".
  explicit FieldReader(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // nullptr if the field is absent or null, or after an error. Every read looks its field up here,
  // so a field that was never looked up is one that no parser knows.
  const Json* Find(const char* name) const;

  void Bool(const char* name, bool& out);
  void Int(const char* name, int64_t low, int64_t high, int& out);
  void Int(const char* name, int64_t low, int64_t high, std::optional<int>& out);
  // Any 64-bit integer; the bits of a negative one are taken as unsigned.
  void Bits(const char* name, std::optional<uint64_t>& out);
  void Number(const char* name, double& out);
  void String(const char* name, size_t max_bytes, std::string& out);
  void StringOrList(const char* name, std::vector<std::string>& out);
  // Call `read` with the field, which must be an object or an array.
  void Object(const char* name, const std::function<void(const Json&)>& read);
  void Array(const char* name, const std::function<void(const Json&)>& read);
  // Refuses the field if it is set to anything but null, false, "", [] or {}. `instead` completes
  // the error: "FIELD is not supported; INSTEAD".
  void Unsupported(const char* name, std::string_view instead);
  // Accepts the field without effect. It counts as ignored unless it is null or `usual`.
  void Ignore(const char* name, const Json& usual = nullptr);
  // Counts the field as ignored.
  void AddIgnored(const std::string& name);
  // Counts those members of an object inside this one as ignored that are not `known` and are set
  // to anything but null, false, "", [] or {}. `where` is the object's path. Json or OrderedJson.
  template <typename Object>
  void IgnoreUnknown(const std::string& where, const Object& object,
                     std::initializer_list<std::string_view> known) {
    if (!object.is_object()) return;
    for (const auto& [name, value] : object.items()) {
      const bool unset = value.empty() || value == Object(false) || value == Object("");
      if (!unset && std::ranges::find(known, name) == known.end()) AddIgnored(where + "." + name);
    }
  }
  // Adds the ignored fields of an object inside this one.
  void AddIgnoredOf(const FieldReader& inner);
  // The ignored fields, and the fields that are set but were never looked up; of these the first
  // `max`.
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

// A client's value for an error text: its JSON on one line, cut when it is long.
std::string Describe(const Json& value);

// The integer in [low, high], or what is wrong: "must be an integer in [0, 5], got 7".
struct IntegerOrError {
  int64_t value = 0;
  std::string error;
};
IntegerOrError ReadInteger(const Json& value, int64_t low, int64_t high);

}  // namespace millrace::serve
