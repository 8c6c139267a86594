#include "plan/io/yaml_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "base/suggest.h"
#include "plan/io/text_fields.h"

namespace millrace::plan {

Result<YAML::Node> LoadYaml(std::string_view text, std::string_view name) {
  if (text.size() > kYamlBytesMax) {
    return InvalidArgument(
        fmt::format("{}: is larger than {} bytes", Printable(name), kYamlBytesMax));
  }
  try {
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    return ErrorAt(name, error.mark.line + 1, error.mark.column + 1,
                   "not valid YAML: " + Printable(error.msg));
  }
}

Status ErrorAt(std::string_view name, const YAML::Node& node, std::string_view message) {
  const YAML::Mark mark = node.Mark();
  return ErrorAt(name, std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1, message);
}

Result<std::string> PlainText(const YAML::Node& node, std::string_view what,
                              std::string_view name) {
  if (!node.IsScalar() || node.Scalar().empty()) {
    return ErrorAt(name, node, fmt::format("{} must be a plain value", what));
  }
  return node.Scalar();
}

Result<YamlMap> YamlMap::Open(const YAML::Node& node, std::string_view what,
                              std::initializer_list<std::string_view> keys, std::string_view name) {
  const std::vector<std::string> known(keys.begin(), keys.end());
  if (!node.IsMap()) {
    return ErrorAt(name, node,
                   fmt::format("{} must be a map with the keys {}", what, fmt::join(known, ", ")));
  }
  YamlMap map(node, std::string(what), name);
  for (const auto& pair : node) {
    if (!pair.first.IsScalar()) {
      return ErrorAt(name, pair.first, fmt::format("a key of {} must be a name", what));
    }
    const std::string& key = pair.first.Scalar();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const auto guess = Suggest(key, known);
      return ErrorAt(name, pair.first,
                     fmt::format("unknown key '{}' in {}; {}", Printable(key, 60), what,
                                 guess ? fmt::format("did you mean {}?", *guess)
                                       : fmt::format("known: {}", fmt::join(known, ", "))));
    }
    if (map.Has(key)) {
      return ErrorAt(name, pair.first, fmt::format("'{}' is given twice in {}", key, what));
    }
    map.entries_.emplace_back(key, pair.second);
  }
  return map;
}

const YAML::Node* YamlMap::Find(std::string_view key) const {
  for (const auto& [known, value] : entries_) {
    if (known == key) return &value;
  }
  return nullptr;
}

Status YamlMap::Error(std::string_view key, std::string_view message) const {
  const YAML::Node* value = Find(key);
  return ErrorAt(name_, value != nullptr ? *value : node_, message);
}

Result<YAML::Node> YamlMap::Need(std::string_view key) const {
  if (const YAML::Node* value = Find(key)) return *value;
  return ErrorAt(name_, node_, fmt::format("'{}' is missing in {}", key, what_));
}

Result<std::string> YamlMap::Text(std::string_view key) const {
  MR_ASSIGN_OR_RETURN(const YAML::Node value, Need(key));
  return PlainText(value, key, name_);
}

Result<std::string> YamlMap::TextOr(std::string_view key, std::string fallback) const {
  if (!Has(key)) return fallback;
  return Text(key);
}

Result<int64_t> YamlMap::Integer(std::string_view key, int64_t min, int64_t max) const {
  MR_ASSIGN_OR_RETURN(const std::string text, Text(key));
  const auto value = IntegerIn(text);
  if (value && *value >= min && *value <= max) return *value;
  return Error(key, fmt::format("{} must be an integer in [{}, {}], got '{}'", key, min, max,
                                Printable(text, 60)));
}

Result<int64_t> YamlMap::IntegerOr(std::string_view key, int64_t fallback, int64_t min,
                                   int64_t max) const {
  if (!Has(key)) return fallback;
  return Integer(key, min, max);
}

Result<bool> YamlMap::BoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  MR_ASSIGN_OR_RETURN(const std::string text, Text(key));
  if (text == "true" || text == "yes") return true;
  if (text == "false" || text == "no") return false;
  return Error(key, fmt::format("{} must be true or false, got '{}'", key, Printable(text, 60)));
}

Result<double> YamlMap::Amount(std::string_view key, Quantity kind) const {
  MR_ASSIGN_OR_RETURN(const std::string text, Text(key));
  auto value = ParseQuantity(kind, text);
  if (value.ok()) return value;
  return Error(key, fmt::format("{} {}", key, value.status().message()));
}

Result<std::optional<double>> YamlMap::AmountIf(std::string_view key, Quantity kind) const {
  if (!Has(key)) return std::optional<double>();
  MR_ASSIGN_OR_RETURN(const double value, Amount(key, kind));
  return std::optional<double>(value);
}

Result<std::vector<YAML::Node>> YamlMap::List(std::string_view key, size_t max) const {
  std::vector<YAML::Node> items;
  const YAML::Node* value = Find(key);
  if (value == nullptr) return items;
  if (!value->IsSequence()) return Error(key, fmt::format("{} must be a list", key));
  if (value->size() > max) {
    return Error(
        key, fmt::format("{} holds {} entries, at most {} are allowed", key, value->size(), max));
  }
  for (const YAML::Node& item : *value) items.push_back(item);
  return items;
}

Result<std::vector<std::string>> YamlMap::Texts(std::string_view key, size_t max) const {
  MR_ASSIGN_OR_RETURN(const auto items, List(key, max));
  std::vector<std::string> texts;
  for (const YAML::Node& item : items) {
    MR_ASSIGN_OR_RETURN(std::string text, PlainText(item, fmt::format("{}'s entry", key), name_));
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace millrace::plan
