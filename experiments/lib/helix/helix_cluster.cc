#include "experiments/lib/helix/helix_cluster.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/log.h"
#include "experiments/lib/helix/simulator_ini.h"
#include "plan/io/helix_files.h"
#include "plan/io/text_fields.h"

namespace millrace::experiments::helix {
namespace {

constexpr double kLinkRateMax = 1e15;  // bytes/s
constexpr double kEntriesMax = 1e15;
constexpr double kLatencyMax = 3600;
constexpr double kDiskBytesPerS = 1e9;  // as in every published cluster

// "compute_node_2" is the first node of the placement.
Result<LayerRange> LayersOf(const std::vector<LayerRange>& placement, std::string_view name) {
  constexpr std::string_view kPrefix = "compute_node_";
  constexpr int64_t kOffset = 2;
  const auto number =
      name.starts_with(kPrefix) ? plan::IntegerIn(name.substr(kPrefix.size())) : std::nullopt;
  if (!number || *number < kOffset || *number - kOffset >= static_cast<int64_t>(placement.size()) ||
      placement[static_cast<size_t>(*number - kOffset)].size() == 0) {
    return InvalidArgument(fmt::format("[{}] holds no layers", Printable(name)));
  }
  return placement[static_cast<size_t>(*number - kOffset)];
}

// Reads -1, Helix's "unset", as a node without its own cache limit.
Result<HelixNode> ParseNode(const SimulatorIni& ini, const std::vector<LayerRange>& placement,
                            const std::string& name) {
  HelixNode node;
  node.name = name;
  MR_ASSIGN_OR_RETURN(node.gpu, ini.Name(name, "machine_type"));
  MR_ASSIGN_OR_RETURN(node.nic_in_bytes_per_s, ini.Quantity(name, "inbound_nic_speed"));
  MR_ASSIGN_OR_RETURN(node.nic_out_bytes_per_s, ini.Quantity(name, "outbound_nic_speed"));
  MR_ASSIGN_OR_RETURN(const double entries, ini.Quantity(name, "kv_cache_capacity"));
  MR_ASSIGN_OR_RETURN(node.layers, LayersOf(placement, name));
  for (double rate : {node.nic_in_bytes_per_s, node.nic_out_bytes_per_s}) {
    if (!(rate > 0) || rate > kLinkRateMax) {
      return InvalidArgument(
          fmt::format("[{}]: a speed must be above 0 and at most 1e15 bytes/s", Printable(name)));
    }
  }
  if (entries < -1 || entries > kEntriesMax) {
    return InvalidArgument(fmt::format("[{}]: cannot cache {} entries", Printable(name), entries));
  }
  node.kv_entries = static_cast<int64_t>(entries < 0 ? kEntriesMax : entries);
  return node;
}

using NodeNumbers = std::unordered_map<std::string, int>;

Result<HelixLink> ParseLink(const SimulatorIni& ini, const NodeNumbers& numbers,
                            const std::string& name) {
  HelixLink link;
  for (const auto& [key, end] : {std::pair{"in", &link.from}, std::pair{"out", &link.to}}) {
    MR_ASSIGN_OR_RETURN(const std::string node, ini.Name(name, key));
    const auto found = numbers.find(node);
    if (found == numbers.end()) {
      return InvalidArgument(fmt::format("[{}]: no node \"{}\"", Printable(name), Printable(node)));
    }
    *end = found->second;
  }
  MR_ASSIGN_OR_RETURN(link.latency_s, ini.Quantity(name, "latency"));
  MR_ASSIGN_OR_RETURN(link.bytes_per_s, ini.Quantity(name, "bandwidth"));
  if (!(link.bytes_per_s > 0) || link.bytes_per_s > kLinkRateMax || !(link.latency_s >= 0) ||
      link.latency_s > kLatencyMax) {
    return InvalidArgument(fmt::format("[{}]: bandwidth or latency out of range", Printable(name)));
  }
  return link;
}

Status ParseBoth(const SimulatorIni& ini, const std::vector<LayerRange>& placement,
                 HelixCluster* cluster) {
  MR_ASSIGN_OR_RETURN(cluster->nic_in_bytes_per_s,
                      ini.Quantity("Coordinator", "inbound_nic_speed"));
  MR_ASSIGN_OR_RETURN(cluster->nic_out_bytes_per_s,
                      ini.Quantity("Coordinator", "outbound_nic_speed"));
  MR_ASSIGN_OR_RETURN(const auto nodes, ini.Names("ComputeNodes", "names"));
  if (nodes.size() > HelixCluster::kNodesMax) return InvalidArgument("more than 1024 nodes");
  NodeNumbers numbers;
  for (const std::string& name : nodes) {
    MR_ASSIGN_OR_RETURN(HelixNode node, ParseNode(ini, placement, name));
    numbers[name] = static_cast<int>(cluster->nodes.size());
    cluster->nodes.push_back(std::move(node));
  }
  numbers["source"] = numbers["sink"] = cluster->coordinator();
  MR_ASSIGN_OR_RETURN(const auto links, ini.Names("Links", "names"));
  std::set<std::pair<int, int>> ends;
  for (const std::string& name : links) {
    MR_ASSIGN_OR_RETURN(const HelixLink link, ParseLink(ini, numbers, name));
    if (link.from == link.to || !ends.emplace(link.from, link.to).second) {
      return InvalidArgument(
          fmt::format("[{}] joins a node to itself, or two that are joined by "
                      "another link",
                      Printable(name)));
    }
    cluster->links.push_back(link);
  }
  return OkStatus();
}

}  // namespace

HelixFleet HelixCluster::Fleet() const {
  HelixFleet fleet;
  for (const HelixNode& node : nodes) ++fleet[node.gpu];
  return fleet;
}

Result<HelixCluster> ParseHelixCluster(std::string_view cluster, std::string_view cluster_name,
                                       std::string_view placement,
                                       std::string_view placement_name) {
  MR_ASSIGN_OR_RETURN(const SimulatorIni ini, SimulatorIni::Parse(cluster, cluster_name));
  MR_ASSIGN_OR_RETURN(const auto held, plan::ParseHelixPlacement(placement, placement_name));
  HelixCluster result;
  if (Status s = ParseBoth(ini, held, &result); !s.ok()) return s.WithContext(cluster_name);
  return result;
}

void DropDeadEnds(HelixCluster* cluster) {
  std::vector<bool> leads_back(cluster->nodes.size() + 1);
  leads_back.back() = true;
  for (size_t round = 0; round <= cluster->nodes.size(); ++round) {
    for (const HelixLink& link : cluster->links) {
      if (leads_back[static_cast<size_t>(link.to)])
        leads_back[static_cast<size_t>(link.from)] = true;
    }
  }
  std::erase_if(cluster->links,
                [&](const HelixLink& link) { return !leads_back[static_cast<size_t>(link.to)]; });
}

double BeginSeconds(const HelixModel& model, const HelixCluster& cluster) {
  double load_s = 0;
  for (const HelixNode& node : cluster.nodes) {
    load_s = std::max(load_s, node.layers.size() * model.layer_bytes / kDiskBytesPerS);
  }
  return std::ceil(load_s) + 1;
}

}  // namespace millrace::experiments::helix
