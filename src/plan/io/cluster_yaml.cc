#include "plan/io/cluster_yaml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/suggest.h"
#include "plan/io/cluster_reader.h"

namespace millrace::plan {
namespace {

constexpr int kRegionsMax = 64;
constexpr int kDevicesMax = 64;  // of one node
constexpr int kAffinityGroupsMax = 1024;

}  // namespace

Result<ClusterSpec> ClusterReader::Read(std::string_view text) {
  MR_ASSIGN_OR_RETURN(const YAML::Node document, LoadYaml(text, name_));
  MR_ASSIGN_OR_RETURN(const YamlMap root,
                      YamlMap::Open(document, "the cluster file",
                                    {"name", "regions", "nodes", "trunks", "links", "coordinator",
                                     "kv_affinity", "server"},
                                    name_));
  MR_ASSIGN_OR_RETURN(out_.name, root.Text("name"));
  MR_ASSIGN_OR_RETURN(regions_, root.Texts("regions", kRegionsMax));
  regions_listed_ = root.Has("regions");
  MR_RETURN_IF_ERROR(ReadNodes(root));
  MR_RETURN_IF_ERROR(ReadTrunks(root));
  MR_RETURN_IF_ERROR(ReadLinks(root));
  MR_RETURN_IF_ERROR(ReadCoordinator(root));
  MR_RETURN_IF_ERROR(ReadAffinity(root));
  MR_RETURN_IF_ERROR(ReadServer(root));
  BuildLinks();
  MR_RETURN_IF_ERROR(CheckConnected(root));
  return std::move(out_);
}

Status ClusterReader::CheckRegion(const YamlMap& map, std::string_view key,
                                  const std::string& region) {
  if (std::find(regions_.begin(), regions_.end(), region) != regions_.end()) return OkStatus();
  const auto guess = Suggest(region, regions_);
  return map.Error(key, fmt::format("unknown region '{}'; {}", Printable(region, 60),
                                    guess ? fmt::format("did you mean {}?", *guess)
                                          : fmt::format("known: {}", fmt::join(regions_, ", "))));
}

Status ClusterReader::ReadNodes(const YamlMap& root) {
  MR_RETURN_IF_ERROR(root.Need("nodes").status());
  MR_ASSIGN_OR_RETURN(const auto items, root.List("nodes", ClusterSpec::kNodesMax));
  for (const YAML::Node& item : items) MR_RETURN_IF_ERROR(ReadNode(item));
  if (out_.nodes.empty()) return root.Error("nodes", "a cluster needs at least one node");
  return OkStatus();
}

Status ClusterReader::ReadNode(const YAML::Node& node) {
  MR_ASSIGN_OR_RETURN(const YamlMap map,
                      YamlMap::Open(node, "a node",
                                    {"name", "count", "region", "device", "devices", "memory",
                                     "price", "spot", "numeric_class", "nic", "profile"},
                                    name_));
  NodeSpec spec;
  MR_ASSIGN_OR_RETURN(const std::string name, map.Text("name"));
  MR_ASSIGN_OR_RETURN(const int64_t count, map.IntegerOr("count", 1, 1, ClusterSpec::kNodesMax));
  MR_ASSIGN_OR_RETURN(spec.region, map.TextOr("region", ""));
  if (regions_listed_) {
    MR_RETURN_IF_ERROR(map.Need("region").status());
    MR_RETURN_IF_ERROR(CheckRegion(map, "region", spec.region));
  } else if (std::find(regions_.begin(), regions_.end(), spec.region) == regions_.end()) {
    if (regions_.size() == kRegionsMax) {
      return map.Error("region", fmt::format("at most {} regions are allowed", kRegionsMax));
    }
    regions_.push_back(spec.region);
  }
  MR_ASSIGN_OR_RETURN(spec.device, map.Text("device"));
  MR_ASSIGN_OR_RETURN(const int64_t devices, map.IntegerOr("devices", 1, 1, kDevicesMax));
  spec.device_count = static_cast<int>(devices);
  MR_ASSIGN_OR_RETURN(const double memory, map.Amount("memory", Quantity::kMemory));
  spec.memory_bytes = static_cast<int64_t>(memory) * devices;
  MR_ASSIGN_OR_RETURN(const auto price, map.AmountIf("price", Quantity::kPrice));
  spec.price_usd_per_hour = price.value_or(0);
  MR_ASSIGN_OR_RETURN(spec.spot, map.BoolOr("spot", false));
  MR_ASSIGN_OR_RETURN(spec.numeric_class, map.TextOr("numeric_class", ""));
  MR_ASSIGN_OR_RETURN(spec.profile, map.TextOr("profile", ""));
  MR_ASSIGN_OR_RETURN(spec.nic_bytes_per_s, map.AmountIf("nic", Quantity::kBandwidth));
  if (out_.nodes.size() + static_cast<size_t>(count) > ClusterSpec::kNodesMax) {
    return map.Error("count",
                     fmt::format("the cluster has more than {} nodes", ClusterSpec::kNodesMax));
  }
  for (int64_t i = 0; i < count; ++i) {
    spec.name = count == 1 ? name : fmt::format("{}-{}", name, i);
    const auto index = static_cast<NodeIndex>(out_.nodes.size());
    if (named_.contains(spec.name) || name == kCoordinator || (i == 0 && named_.contains(name))) {
      return map.Error("name", fmt::format("the name '{}' is taken", Printable(spec.name, 60)));
    }
    named_[spec.name] = {index};
    out_.nodes.push_back(spec);
    places_.push_back(node);
  }
  if (count == 1) return OkStatus();
  for (int64_t i = count; i > 0; --i) {
    named_[name].push_back(static_cast<NodeIndex>(out_.nodes.size()) - static_cast<NodeIndex>(i));
  }
  return OkStatus();
}

Result<std::vector<NodeIndex>> ClusterReader::NodesNamed(const YAML::Node& node) {
  MR_ASSIGN_OR_RETURN(const std::string text, PlainText(node, "a node's name", name_));
  if (const auto at = named_.find(text); at != named_.end()) return at->second;
  std::vector<std::string> names;
  for (const auto& [known, indices] : named_) names.push_back(known);
  const auto guess = Suggest(text, names);
  return ErrorAt(name_, node,
                 fmt::format("there is no node '{}'{}", Printable(text, 60),
                             guess ? fmt::format("; did you mean {}?", *guess) : ""));
}

Status ClusterReader::ReadAffinity(const YamlMap& root) {
  MR_ASSIGN_OR_RETURN(const auto groups, root.List("kv_affinity", kAffinityGroupsMax));
  for (const YAML::Node& group : groups) {
    if (!group.IsSequence() || group.size() > ClusterSpec::kNodesMax) {
      return ErrorAt(name_, group, "a group of kv_affinity must be a list of node names");
    }
    std::set<NodeIndex> members;
    for (const YAML::Node& item : group) {
      MR_ASSIGN_OR_RETURN(const auto nodes, NodesNamed(item));
      members.insert(nodes.begin(), nodes.end());
    }
    out_.kv_affinity.emplace_back(members.begin(), members.end());
  }
  return OkStatus();
}

Status ClusterReader::ReadServer(const YamlMap& root) {
  if (!root.Has("server")) return OkStatus();
  MR_ASSIGN_OR_RETURN(const YAML::Node node, root.Need("server"));
  MR_ASSIGN_OR_RETURN(const YamlMap map,
                      YamlMap::Open(node, "the server",
                                    {"block_size", "max_num_seqs", "max_num_batched_tokens",
                                     "max_model_len", "enable_prefix_caching"},
                                    name_));
  ServerSizes& server = out_.server;
  const auto read = [&map](const char* key, int max, std::optional<int>& size) -> Status {
    if (!map.Has(key)) return OkStatus();
    MR_ASSIGN_OR_RETURN(size, map.Integer(key, 1, max));
    return OkStatus();
  };
  MR_RETURN_IF_ERROR(read("block_size", ServerSizes::kBlockSizeMax, server.block_size));
  if (server.block_size.value_or(0) % ServerSizes::kBlockSizeStep != 0) {
    return map.Error("block_size", fmt::format("block_size must be a multiple of {}",
                                               ServerSizes::kBlockSizeStep));
  }
  MR_RETURN_IF_ERROR(read("max_num_seqs", ServerSizes::kNumSeqsMax, server.max_num_seqs));
  MR_RETURN_IF_ERROR(read("max_num_batched_tokens", ServerSizes::kNumBatchedTokensMax,
                          server.max_num_batched_tokens));
  MR_RETURN_IF_ERROR(read("max_model_len", ServerSizes::kModelLenMax, server.max_model_len));
  if (map.Has("enable_prefix_caching")) {
    MR_ASSIGN_OR_RETURN(server.enable_prefix_caching, map.BoolOr("enable_prefix_caching", true));
  }
  return OkStatus();
}

Status ClusterReader::CheckConnected(const YamlMap& root) {
  const auto node = FirstCutOffNode(out_);
  if (!node) return OkStatus();
  const NodeSpec& spec = out_.nodes[static_cast<size_t>(*node)];
  return ErrorAt(name_, root.Has("links") ? places_[static_cast<size_t>(*node)] : root.node(),
                 fmt::format("no links lead from the coordinator to node '{}' and back; add its "
                             "region{} to links.between_regions, or within_region, or pairs",
                             Printable(spec.name, 60),
                             spec.region.empty() ? "" : " " + Printable(spec.region, 60)));
}

Result<ClusterSpec> ParseClusterYaml(std::string_view text, std::string_view name) {
  return ClusterReader(name).Read(text);
}

}  // namespace millrace::plan
