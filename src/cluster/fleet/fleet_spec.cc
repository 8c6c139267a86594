#include "cluster/fleet/fleet_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "plan/io/yaml_reader.h"

namespace millrace::cluster {
namespace {

using plan::Quantity;
using plan::YamlMap;

constexpr double kCoolDownMin_s = 1, kFleetTimeMax_s = 86400, kProviderTimeMax_s = 600;
constexpr std::string_view kExecPrefix = "exec:", kKubernetesPrefix = "kubernetes:";

Status ReadSeconds(const YamlMap& map, const char* key, double min_s, double max_s, Duration& out) {
  MR_ASSIGN_OR_RETURN(const auto seconds, map.AmountIf(key, Quantity::kDuration));
  if (!seconds) return OkStatus();
  if (*seconds < min_s || *seconds > max_s) {
    return map.Error(key, fmt::format("{} must be in [{:g} s, {:g} s]", key, min_s, max_s));
  }
  out = Duration::Seconds(*seconds);
  return OkStatus();
}

Status ReadProvider(const YamlMap& map, FleetKind& kind) {
  MR_ASSIGN_OR_RETURN(const std::string text, map.Text("provider"));
  if (text == "none") return OkStatus();
  for (const auto& [prefix, provider] : {std::pair{kExecPrefix, FleetProvider::kExec},
                                         {kKubernetesPrefix, FleetProvider::kKubernetes}}) {
    if (!text.starts_with(prefix) || text.size() == prefix.size()) continue;
    kind.provider = provider;
    kind.argument = text.substr(prefix.size());
    const auto slashes = std::ranges::count(kind.argument, '/');
    if (provider == FleetProvider::kExec || slashes == 0 ||
        (slashes == 1 && !kind.argument.starts_with('/') && !kind.argument.ends_with('/'))) {
      return OkStatus();
    }
  }
  return map.Error("provider", fmt::format("provider must be none, exec:COMMAND or "
                                           "kubernetes:[NAMESPACE/]STATEFULSET, got '{}'",
                                           Printable(text, 60)));
}

Result<FleetKind> ReadKind(const YAML::Node& node, std::string_view name) {
  MR_ASSIGN_OR_RETURN(const YamlMap map,
                      YamlMap::Open(node, "a kind",
                                    {"name", "provider", "price", "spot", "min", "max", "requests",
                                     "startup", "timeout", "workers"},
                                    name));
  FleetKind kind;
  MR_ASSIGN_OR_RETURN(kind.name, map.Text("name"));
  MR_RETURN_IF_ERROR(ReadProvider(map, kind));
  MR_ASSIGN_OR_RETURN(kind.usd_per_h, map.AmountIf("price", Quantity::kPrice));
  MR_ASSIGN_OR_RETURN(kind.spot, map.BoolOr("spot", false));
  MR_ASSIGN_OR_RETURN(const int64_t min, map.IntegerOr("min", 0, 0, FleetSpec::kMachinesMax));
  MR_ASSIGN_OR_RETURN(const int64_t max, map.Integer("max", 1, FleetSpec::kMachinesMax));
  if (min > max) return map.Error("min", fmt::format("min is {} and max only {}", min, max));
  kind.min = static_cast<int>(min);
  kind.max = static_cast<int>(max);
  MR_ASSIGN_OR_RETURN(kind.requests_per_s, map.Amount("requests", Quantity::kRate));
  MR_RETURN_IF_ERROR(ReadSeconds(map, "startup", 0, kFleetTimeMax_s, kind.startup));
  MR_RETURN_IF_ERROR(ReadSeconds(map, "timeout", 1, kProviderTimeMax_s, kind.timeout));
  MR_ASSIGN_OR_RETURN(kind.workers, map.TextOr("workers", ""));
  if (kind.workers.empty()) kind.workers = kind.name + "-";
  return kind;
}

Status ReadKubernetes(const YamlMap& root, std::string_view name, KubernetesAccess& access) {
  if (!root.Has("kubernetes")) return OkStatus();
  MR_ASSIGN_OR_RETURN(const YAML::Node node, root.Need("kubernetes"));
  MR_ASSIGN_OR_RETURN(const YamlMap map,
                      YamlMap::Open(node, "the access to Kubernetes",
                                    {"endpoint", "ca_file", "token_file", "namespace"}, name));
  MR_ASSIGN_OR_RETURN(access.endpoint, map.TextOr("endpoint", ""));
  MR_ASSIGN_OR_RETURN(access.ca_file, map.TextOr("ca_file", ""));
  MR_ASSIGN_OR_RETURN(access.token_file, map.TextOr("token_file", ""));
  MR_ASSIGN_OR_RETURN(access.name_space, map.TextOr("namespace", ""));
  return OkStatus();
}

// The least that the fleet has must be affordable.
Status CheckBudget(const YamlMap& root, const FleetSpec& spec) {
  if (!spec.budget_usd_per_h) return OkStatus();
  double least = 0;
  for (const FleetKind& kind : spec.kinds) least += kind.min * kind.usd_per_h.value_or(0);
  if (least <= *spec.budget_usd_per_h) return OkStatus();
  return root.Error("budget", fmt::format("the minimum of each kind costs {:g} USD/h together, "
                                          "which is more than the budget",
                                          least));
}

}  // namespace

std::string_view ProviderName(FleetProvider provider) {
  switch (provider) {
    case FleetProvider::kNone: return "none";
    case FleetProvider::kExec: return "exec";
    case FleetProvider::kKubernetes: return "kubernetes";
  }
  return "?";
}

Result<FleetSpec> ParseFleetYaml(std::string_view text, std::string_view name) {
  MR_ASSIGN_OR_RETURN(const YAML::Node document, plan::LoadYaml(text, name));
  MR_ASSIGN_OR_RETURN(
      const YamlMap root,
      YamlMap::Open(document, "the fleet file",
                    {"kinds", "budget", "cool_down", "headroom", "spares", "kubernetes"}, name));
  FleetSpec spec;
  MR_RETURN_IF_ERROR(root.Need("kinds").status());
  MR_ASSIGN_OR_RETURN(const auto kinds, root.List("kinds", FleetSpec::kKindsMax));
  if (kinds.empty()) return root.Error("kinds", "a fleet needs at least one kind");
  for (const YAML::Node& node : kinds) {
    MR_ASSIGN_OR_RETURN(FleetKind kind, ReadKind(node, name));
    const auto same = [&](const FleetKind& other) {
      const bool set = kind.provider == FleetProvider::kKubernetes &&
                       other.provider == kind.provider && other.argument == kind.argument;
      return set || other.name == kind.name;
    };
    if (std::ranges::any_of(spec.kinds, same)) {
      return plan::ErrorAt(name, node,
                           "two kinds have the same name or the same StatefulSet; a kind needs its "
                           "own");
    }
    spec.kinds.push_back(std::move(kind));
  }
  MR_ASSIGN_OR_RETURN(spec.budget_usd_per_h, root.AmountIf("budget", Quantity::kPrice));
  MR_RETURN_IF_ERROR(
      ReadSeconds(root, "cool_down", kCoolDownMin_s, kFleetTimeMax_s, spec.cool_down));
  MR_ASSIGN_OR_RETURN(const std::string headroom, root.TextOr("headroom", "1.2"));
  char* end = nullptr;
  spec.headroom = std::strtod(headroom.c_str(), &end);
  if (*end != '\0' || !(spec.headroom >= 1 && spec.headroom <= FleetSpec::kHeadroomMax)) {
    return root.Error(
        "headroom", fmt::format("headroom must be a number in [1, {:g}]", FleetSpec::kHeadroomMax));
  }
  MR_ASSIGN_OR_RETURN(const int64_t spares, root.IntegerOr("spares", 0, 0, FleetSpec::kSparesMax));
  spec.spares = static_cast<int>(spares);
  MR_RETURN_IF_ERROR(ReadKubernetes(root, name, spec.kubernetes));
  MR_RETURN_IF_ERROR(CheckBudget(root, spec));
  return spec;
}

}  // namespace millrace::cluster
