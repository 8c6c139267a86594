// Fields of a JSON object from a server, one by one or as a struct. A field that is missing or of
// another type is empty, not an error; text is made printable. Pure; any thread.
//
// A struct lists its fields once: ForEachJsonField(value, visit) calls `visit(JsonField, member)`
// for each. WriteJson writes the struct and ReadJson reads it.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "core/layer_range.h"

namespace millrace::apps {

inline constexpr size_t kNameBytesMax = 64, kSentenceBytesMax = 512;
inline constexpr int kLayerMax = 1 << 20;
inline constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::min();  // as JsonField::least

std::string TextField(const Json& object, const char* key, size_t max_bytes = kNameBytesMax);
int64_t IntegerField(const Json& object, const char* key);
double RealField(const Json& object, const char* key);
bool FlagField(const Json& object, const char* key);
bool HasNumber(const Json& object, const char* key);
// The objects of an array; other elements are skipped.
std::vector<Json> ObjectsField(const Json& object, const char* key);
// Json::value_t::discarded if it is missing, which is no value of any type.
const Json& ValueField(const Json& object, const char* key);

struct JsonField {
  const char* name;
  size_t bytes_max = kNameBytesMax;  // of a text, and of the texts inside
  // Of a number. One outside is moved into the range, or taken for none where it may be unset.
  int64_t least = 0, most = std::numeric_limits<int64_t>::max();
  bool lines = false;    // a text keeps its line breaks, and is cut without a mark
  bool omitted = false;  // while it is unset; otherwise it is null
};

struct AnyVisit {  // a lambda here would be of no namespace to some compilers
  void operator()(const JsonField& /*field*/, auto& /*member*/) const {}
};
template <typename T>
concept HasJsonFields = requires(T& value, AnyVisit visit) {
  ForEachJsonField(value, visit);
};
template <typename T>
concept MayBeUnset = requires(T& value) {
  value.has_value();
};

// [[0, 6], [8, 9]]. One range is a list of one.
Json WriteJson(const std::vector<LayerRange>& ranges);
Json WriteJson(LayerRange range);

template <typename T>
Json WriteJson(T value) {
  if constexpr (MayBeUnset<T>) {
    return value ? WriteJson(*std::move(value)) : Json();
  } else if constexpr (HasJsonFields<T>) {
    Json object = Json::object();
    ForEachJsonField(value, [&object](const JsonField& field, auto& member) {
      if constexpr (requires { member.has_value(); }) {
        if (field.omitted && !member) return;
      }
      object[field.name] = WriteJson(std::move(member));
    });
    return object;
  } else if constexpr (requires { requires HasJsonFields<typename T::value_type>; }) {
    Json list = Json::array();
    for (auto& each : value) list.push_back(WriteJson(std::move(each)));
    return list;
  } else {
    return Json(std::move(value));
  }
}

// False if `json` is not such a value, or out of range.
bool ReadJson(const Json& json, const JsonField& field, std::string& value);
bool ReadJson(const Json& json, const JsonField& field, bool& value);
bool ReadJson(const Json& json, const JsonField& field, int64_t& value);
bool ReadJson(const Json& json, const JsonField& field, double& value);
bool ReadJson(const Json& json, const JsonField& field, LayerRange& value);
bool ReadJson(const Json& json, const JsonField& field, std::vector<LayerRange>& value);
// An element of another type is an empty text.
bool ReadJson(const Json& json, const JsonField& field, std::vector<std::string>& value);
// Elements of another type are skipped.
bool ReadJson(const Json& json, const JsonField& field, std::map<std::string, int64_t>& value);

template <typename T>
bool ReadJson(const Json& json, const JsonField& field, T& value) {
  if constexpr (MayBeUnset<T>) {
    typename T::value_type read{};
    value.reset();
    if (ReadJson(json, field, read)) value.emplace(std::move(read));
    return value || json.is_null();
  } else if constexpr (HasJsonFields<T>) {
    ForEachJsonField(value, [&](JsonField inner, auto& member) {
      inner.bytes_max = std::max(inner.bytes_max, field.bytes_max);
      ReadJson(ValueField(json, inner.name), inner, member);
    });
    return json.is_object();
  } else if constexpr (std::integral<T>) {
    JsonField narrow = field;
    if (sizeof(T) < sizeof(int64_t)) {
      narrow.most = std::min<int64_t>(field.most, std::numeric_limits<T>::max());
    }
    auto wide = static_cast<int64_t>(value);
    const bool read = ReadJson(json, narrow, wide);
    value = static_cast<T>(wide);
    return read;
  } else {  // a list of structs
    if (!json.is_array()) return false;
    for (const Json& each : json) {
      if (each.is_object()) ReadJson(each, field, value.emplace_back());
    }
    return true;
  }
}

// A whole answer.
template <typename T>
T ReadJson(const Json& json) {
  T value;
  ReadJson(json, {}, value);
  return value;
}

}  // namespace millrace::apps
