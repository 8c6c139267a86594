#include "apps/cluster/json_fields.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace millrace::apps {

std::string TextField(const Json& object, const char* key, size_t max_bytes) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? Printable(at->get<std::string>(), max_bytes) : "";
}

int64_t IntegerField(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return 0;
  if (!at->is_number_unsigned()) return at->get<int64_t>();
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(at->get<uint64_t>(), kMost));
}

double RealField(const Json& object, const char* key) {
  return HasNumber(object, key) ? object.find(key)->get<double>() : 0;
}

bool FlagField(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

bool HasNumber(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number();
}

std::vector<Json> ObjectsField(const Json& object, const char* key) {
  std::vector<Json> out;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return out;
  for (const Json& item : *at) {
    if (item.is_object()) out.push_back(item);
  }
  return out;
}

}  // namespace millrace::apps
