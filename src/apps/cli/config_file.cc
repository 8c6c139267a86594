#include "apps/cli/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/log.h"

namespace millrace::apps {
namespace {

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

Result<std::vector<std::string>> Values(const std::string& key, const YAML::Node& node) {
  if (node.IsNull()) return std::vector<std::string>{};  // "key:" keeps the default
  if (node.IsScalar()) return std::vector<std::string>{node.Scalar()};
  if (!node.IsSequence()) {
    return InvalidArgument(
        fmt::format("line {}: '{}' must be a value or a list of values; nested maps are not used",
                    LineOf(node), Printable(key)));
  }
  if (node.size() > kConfigValuesMax) {
    return InvalidArgument(fmt::format("line {}: '{}' holds {} values, at most {} are allowed",
                                       LineOf(node), Printable(key), node.size(),
                                       kConfigValuesMax));
  }
  std::vector<std::string> values;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      return InvalidArgument(fmt::format("line {}: the list '{}' must hold plain values",
                                         LineOf(item), Printable(key)));
    }
    values.push_back(item.Scalar());
  }
  return values;
}

Result<ConfigEntries> Entries(const YAML::Node& root) {
  ConfigEntries entries;
  if (root.IsNull()) return entries;
  if (!root.IsMap()) {
    return InvalidArgument("must be a map from option names to values, such as 'port: 8000'");
  }
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) {
      return InvalidArgument(fmt::format("line {}: a key must be a name", LineOf(pair.first)));
    }
    std::string key = pair.first.Scalar();
    std::replace(key.begin(), key.end(), '_', '-');
    MR_ASSIGN_OR_RETURN(auto values, Values(key, pair.second));
    const int line = LineOf(pair.first);
    auto [at, is_new] = entries.emplace(key, ConfigEntry{std::move(values), line});
    if (!is_new) {
      return InvalidArgument(fmt::format("line {}: '{}' is given twice, first on line {}", line,
                                         Printable(key), at->second.line));
    }
  }
  return entries;
}

}  // namespace

Result<ConfigEntries> ParseConfig(std::string_view yaml) {
  if (yaml.size() > kConfigBytesMax) {
    return InvalidArgument(fmt::format("is larger than {} bytes", kConfigBytesMax));
  }
  try {
    return Entries(YAML::Load(std::string(yaml)));
  } catch (const YAML::Exception& error) {
    return InvalidArgument(
        fmt::format("line {}: not valid YAML: {}", error.mark.line + 1, Printable(error.msg)));
  }
}

}  // namespace millrace::apps
