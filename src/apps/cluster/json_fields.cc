#include "apps/cluster/json_fields.h"

#include "base/log.h"

namespace millrace::apps {
namespace {

template <typename T>
T ReadField(const Json& object, const JsonField& field) {
  T value{};
  ReadJson(ValueField(object, field.name), field, value);
  return value;
}

}  // namespace

std::string TextField(const Json& object, const char* key, size_t max_bytes) {
  return ReadField<std::string>(object, {key, max_bytes});
}

int64_t IntegerField(const Json& object, const char* key) {
  return ReadField<int64_t>(object, {.name = key, .least = kAnyNumber});
}

double RealField(const Json& object, const char* key) {
  const Json& value = ValueField(object, key);
  return value.is_number() ? value.get<double>() : 0;
}

bool FlagField(const Json& object, const char* key) { return ReadField<bool>(object, {key}); }

bool HasNumber(const Json& object, const char* key) { return ValueField(object, key).is_number(); }

std::vector<Json> ObjectsField(const Json& object, const char* key) {
  std::vector<Json> out;
  const Json& list = ValueField(object, key);
  if (!list.is_array()) return out;
  for (const Json& item : list) {
    if (item.is_object()) out.push_back(item);
  }
  return out;
}

const Json& ValueField(const Json& object, const char* key) {
  static const Json none(Json::value_t::discarded);
  const auto at = object.find(key);
  return at == object.end() ? none : *at;
}

Json WriteJson(const std::vector<LayerRange>& ranges) {
  Json all = Json::array();
  for (const LayerRange& range : ranges) all.push_back({range.begin, range.end});
  return all;
}

Json WriteJson(LayerRange range) { return WriteJson(std::vector{range}); }

bool ReadJson(const Json& json, const JsonField& field, std::string& value) {
  if (!json.is_string()) return false;
  const auto& text = json.get_ref<const std::string&>();
  value = field.lines ? text.substr(0, field.bytes_max) : Printable(text, field.bytes_max);
  return true;
}

bool ReadJson(const Json& json, const JsonField& /*field*/, bool& value) {
  if (!json.is_boolean()) return false;
  value = json.get<bool>();
  return true;
}

bool ReadJson(const Json& json, const JsonField& field, int64_t& value) {
  if (!json.is_number_integer()) return false;
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t sent = json.is_number_unsigned()
                           ? static_cast<int64_t>(std::min(json.get<uint64_t>(), kMost))
                           : json.get<int64_t>();
  value = std::clamp(sent, field.least, field.most);
  return value == sent;
}

bool ReadJson(const Json& json, const JsonField& field, double& value) {
  if (!json.is_number()) return false;
  const auto sent = json.get<double>();
  value = std::max(static_cast<double>(field.least), sent);
  return value == sent;
}

bool ReadJson(const Json& json, const JsonField& field, LayerRange& value) {
  std::vector<LayerRange> ranges;
  if (!ReadJson(json, field, ranges) || ranges.empty()) return false;
  value = ranges.front();
  return true;
}

bool ReadJson(const Json& json, const JsonField& /*field*/, std::vector<LayerRange>& value) {
  if (!json.is_array()) return false;
  for (const Json& range : json) {
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_integer() ||
        !range[1].is_number_integer()) {
      continue;
    }
    const auto begin = range[0].get<int64_t>(), end = range[1].get<int64_t>();
    if (begin < 0 || begin >= end || end > kLayerMax) continue;
    value.push_back({static_cast<int>(begin), static_cast<int>(end)});
  }
  return true;
}

bool ReadJson(const Json& json, const JsonField& field, std::vector<std::string>& value) {
  if (!json.is_array()) return false;
  for (const Json& text : json) ReadJson(text, field, value.emplace_back());
  return true;
}

bool ReadJson(const Json& json, const JsonField& field, std::map<std::string, int64_t>& value) {
  if (!json.is_object()) return false;
  for (const auto& [name, number] : json.items()) {
    if (number.is_number_integer())
      ReadJson(number, field, value[Printable(name, field.bytes_max)]);
  }
  return true;
}

}  // namespace millrace::apps
