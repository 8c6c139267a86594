// Reads YAML that a person wrote: maps with a fixed set of keys, errors with the position, "did you
// mean" for a mistyped key. The only user of yaml-cpp in plan/. One thread.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/io/quantity.h"

namespace millrace::plan {

// The name of the node that requests come from and answers return to.
inline constexpr std::string_view kCoordinator = "coordinator";

inline constexpr size_t kYamlBytesMax = size_t{8} << 20;

// The root of the document. `name` names the file in errors.
Result<YAML::Node> LoadYaml(std::string_view text, std::string_view name);

// "NAME:LINE:COLUMN: message" at the node.
Status ErrorAt(std::string_view name, const YAML::Node& node, std::string_view message);

// A map with known keys. Getters accept only those keys; their errors point at the value.
class YamlMap {
 public:
  // `what` names the map in errors: "a node". `name` must outlive the map.
  static Result<YamlMap> Open(const YAML::Node& node, std::string_view what,
                              std::initializer_list<std::string_view> keys, std::string_view name);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // The value, or an error at the map if it is missing.
  Result<YAML::Node> Need(std::string_view key) const;

  Result<std::string> Text(std::string_view key) const;
  Result<std::string> TextOr(std::string_view key, std::string fallback) const;
  Result<int64_t> Integer(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> IntegerOr(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;
  Result<double> Amount(std::string_view key, Quantity kind) const;
  Result<std::optional<double>> AmountIf(std::string_view key, Quantity kind) const;
  // At most `max` items; none if the key is missing.
  Result<std::vector<YAML::Node>> List(std::string_view key, size_t max) const;
  Result<std::vector<std::string>> Texts(std::string_view key, size_t max) const;

  // An error at the value of `key`, or at the map if it is missing.
  Status Error(std::string_view key, std::string_view message) const;
  const YAML::Node& node() const { return node_; }

 private:
  YamlMap(const YAML::Node& node, std::string what, std::string_view name)
      : node_(node), what_(std::move(what)), name_(name) {}
  const YAML::Node* Find(std::string_view key) const;

  YAML::Node node_;
  std::string what_;
  std::string_view name_;
  std::vector<std::pair<std::string, YAML::Node>> entries_;
};

// The text of a plain value: a name, a number with its unit.
Result<std::string> PlainText(const YAML::Node& node, std::string_view what, std::string_view name);

}  // namespace millrace::plan
