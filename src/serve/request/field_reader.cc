#include "serve/request/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/log.h"

namespace millrace::serve {
namespace {

constexpr size_t kDescribedBytesMax = 64;
constexpr size_t kInnerIgnoredMax = 16;
// More are not remembered; an answer names far fewer.
constexpr size_t kIgnoredKeptMax = 256;

void AppendText(std::string_view text, std::string& out) {
  const bool whole = text.size() <= kDescribedBytesMax;
  out += DumpJson(Json(std::string(text.substr(0, kDescribedBytesMax))));
  if (!whole) out.insert(out.size() - 1, "...");
}

// Stops soon after kDescribedBytesMax bytes, however large the value is.
void AppendShort(const Json& value, std::string& out) {
  const auto full = [&out] { return out.size() > kDescribedBytesMax; };
  if (value.is_string()) return AppendText(value.get_ref<const std::string&>(), out);
  if (!value.is_structured()) {
    out += DumpJson(value);
    return;
  }
  out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [name, item] : value.items()) {
    if (full()) return;
    if (!std::exchange(first, false)) out += ", ";
    if (value.is_object()) {
      AppendText(name, out);
      out += ": ";
    }
    AppendShort(item, out);
  }
  out += value.is_object() ? '}' : ']';
}

}  // namespace

std::string Describe(const Json& value) {
  std::string text;
  AppendShort(value, text);
  // Room for the quotation marks of a string, and for the three dots inside them.
  return Printable(text, value.is_string() ? text.size() : kDescribedBytesMax);
}

IntegerOrError ReadInteger(const Json& value, int64_t low, int64_t high) {
  if (value.is_number_integer()) {
    const bool beyond = value.is_number_unsigned() &&
                        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    if (!beyond && value.get<int64_t>() >= low && value.get<int64_t>() <= high) {
      return {.value = value.get<int64_t>(), .error = ""};
    }
  }
  if (high == std::numeric_limits<int32_t>::max()) {
    return {.error = fmt::format("must be an integer of at least {} (and below 2^31), got {}", low,
                                 Describe(value))};
  }
  return {.error =
              fmt::format("must be an integer in [{}, {}], got {}", low, high, Describe(value))};
}

const Json* FieldReader::Find(const char* name) const {
  if (error_) return nullptr;
  known_.emplace_back(name);
  auto found = object_.find(name);
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

void FieldReader::Bool(const char* name, bool& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return WrongType(name, "true or false", *value);
  out = value->get<bool>();
}

void FieldReader::Int(const char* name, int64_t low, int64_t high, int& out) {
  std::optional<int> value;
  Int(name, low, high, value);
  if (value) out = *value;
}

void FieldReader::Int(const char* name, int64_t low, int64_t high, std::optional<int>& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  IntegerOrError read = ReadInteger(*value, low, high);
  if (!read.error.empty()) return Fail(name, prefix_ + name + " " + read.error);
  out = static_cast<int>(read.value);
}

void FieldReader::Bits(const char* name, std::optional<uint64_t>& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_number_integer()) {
    return WrongType(name, "an integer from -2^63 to 2^64 - 1", *value);
  }
  out = value->is_number_unsigned() ? value->get<uint64_t>()
                                    : static_cast<uint64_t>(value->get<int64_t>());
}

void FieldReader::Number(const char* name, double& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return WrongType(name, "a number", *value);
  out = value->get<double>();
}

void FieldReader::String(const char* name, size_t max_bytes, std::string& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return WrongType(name, "a string", *value);
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    return Fail(name, fmt::format("{}{} has {} bytes, the limit is {}", prefix_, name, text.size(),
                                  max_bytes));
  }
  out = text;
}

void FieldReader::StringOrList(const char* name, std::vector<std::string>& out) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (value->is_string()) {
    out = {value->get<std::string>()};
    return;
  }
  if (!value->is_array()) return WrongType(name, "a string or an array of strings", *value);
  out.clear();
  for (const Json& item : *value) {
    if (!item.is_string()) {
      return Fail(name, fmt::format("{}{}[{}] must be a string, got {}", prefix_, name, out.size(),
                                    Describe(item)));
    }
    out.push_back(item.get<std::string>());
  }
}

void FieldReader::Object(const char* name, const std::function<void(const Json&)>& read) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_object()) return WrongType(name, "an object", *value);
  read(*value);
}

void FieldReader::Array(const char* name, const std::function<void(const Json&)>& read) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_array()) return WrongType(name, "an array", *value);
  read(*value);
}

void FieldReader::Unsupported(const char* name, std::string_view instead) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  const bool unset = *value == Json(false) || (value->is_string() && *value == Json("")) ||
                     (value->is_structured() && value->empty());
  if (unset) return;
  Fail(UnsupportedField(prefix_ + name,
                        fmt::format("{}{} is not supported; {}", prefix_, name, instead)));
}

void FieldReader::Ignore(const char* name, const Json& usual) {
  const Json* value = Find(name);
  if (value != nullptr && *value != usual) AddIgnored(name);
}

void FieldReader::AddIgnored(const std::string& name) {
  if (ignored_.size() < kIgnoredKeptMax) ignored_.push_back(prefix_ + name);
}

void FieldReader::AddIgnoredOf(const FieldReader& inner) {
  for (std::string& name : inner.IgnoredFields(kInnerIgnoredMax)) {
    ignored_.push_back(std::move(name));
  }
}

std::vector<std::string> FieldReader::IgnoredFields(size_t max) const {
  std::vector<std::string> names = ignored_;
  const size_t end = names.size() + max;
  for (const auto& [name, value] : object_.items()) {
    if (names.size() == end) break;
    if (value.is_null() || std::ranges::find(known_, name) != known_.end()) continue;
    names.push_back(prefix_ + name);
  }
  return names;
}

void FieldReader::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::Fail(std::string_view name, std::string message) {
  Fail(BadField(prefix_ + std::string(name), std::move(message)));
}

void FieldReader::WrongType(const char* name, const char* wanted, const Json& got) {
  Fail(name, fmt::format("{}{} must be {}, got {}", prefix_, name, wanted, Describe(got)));
}

}  // namespace millrace::serve
