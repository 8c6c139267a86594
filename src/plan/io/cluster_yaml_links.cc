#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "plan/io/cluster_reader.h"
#include "plan/io/cluster_yaml.h"

namespace millrace::plan {
namespace {

constexpr size_t kBetweenMax = 4096;
constexpr int kPairsMax = 65536;
constexpr int kTrunksMax = 1024;
// Between a node and a coordinator on the same machine.
constexpr double kSameMachineBytesPerS = 12.5e12;

}  // namespace

Status ClusterReader::ReadTrunks(const YamlMap& root) {
  MR_ASSIGN_OR_RETURN(const auto items, root.List("trunks", kTrunksMax));
  for (const YAML::Node& item : items) {
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(item, "a trunk", {"name", "bandwidth"}, name_));
    TrunkSpec trunk;
    MR_ASSIGN_OR_RETURN(trunk.name, map.Text("name"));
    MR_ASSIGN_OR_RETURN(trunk.bytes_per_s, map.Amount("bandwidth", Quantity::kBandwidth));
    for (const TrunkSpec& other : out_.trunks) {
      if (other.name != trunk.name) continue;
      return map.Error("name",
                       fmt::format("the trunk '{}' is given twice", Printable(trunk.name, 60)));
    }
    out_.trunks.push_back(std::move(trunk));
  }
  return OkStatus();
}

// The name of a trunk listed under trunks, or a bandwidth, which means a trunk for this line only.
Result<int> ClusterReader::ReadTrunk(const YamlMap& map, std::string default_name) {
  MR_ASSIGN_OR_RETURN(const std::string text, map.Text("trunk"));
  for (size_t i = 0; i < out_.trunks.size(); ++i) {
    if (out_.trunks[i].name == text) return static_cast<int>(i);
  }
  auto bandwidth = ParseQuantity(Quantity::kBandwidth, text);
  if (!bandwidth.ok()) {
    std::vector<std::string> names;
    for (const TrunkSpec& trunk : out_.trunks) names.push_back(trunk.name);
    return map.Error("trunk",
                     fmt::format("trunk is neither one of those listed ({}) nor a "
                                 "bandwidth: it {}",
                                 names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                                 bandwidth.status().message()));
  }
  out_.trunks.push_back({std::move(default_name), *bandwidth});
  return static_cast<int>(out_.trunks.size()) - 1;
}

Result<Line> ClusterReader::ReadLine(const YamlMap& map) {
  Line line;
  MR_ASSIGN_OR_RETURN(line.bytes_per_s, map.Amount("bandwidth", Quantity::kBandwidth));
  MR_ASSIGN_OR_RETURN(const double latency_s, map.Amount("latency", Quantity::kLatency));
  line.latency = Duration::Nanos(std::llround(latency_s * 1e9));
  return line;
}

Status ClusterReader::ReadLinks(const YamlMap& root) {
  if (!root.Has("links")) {
    if (out_.nodes.size() == 1) {
      within_ = Line{kSameMachineBytesPerS, {}, {}};
      return OkStatus();
    }
    return root.Error("links",
                      "'links' is missing in the cluster file: how fast are the nodes connected?");
  }
  MR_ASSIGN_OR_RETURN(const YAML::Node node, root.Need("links"));
  MR_ASSIGN_OR_RETURN(
      const YamlMap links,
      YamlMap::Open(node, "links", {"within_region", "between_regions", "pairs"}, name_));
  if (links.Has("within_region")) {
    MR_ASSIGN_OR_RETURN(const YAML::Node within, links.Need("within_region"));
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(within, "within_region", {"bandwidth", "latency"}, name_));
    MR_ASSIGN_OR_RETURN(within_, ReadLine(map));
  }
  MR_RETURN_IF_ERROR(ReadBetween(links));
  return ReadPairs(links);
}

Status ClusterReader::ReadBetween(const YamlMap& links) {
  MR_ASSIGN_OR_RETURN(const auto items, links.List("between_regions", kBetweenMax));
  for (const YAML::Node& item : items) {
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(item, "an entry of between_regions",
                                      {"regions", "bandwidth", "latency", "trunk"}, name_));
    MR_ASSIGN_OR_RETURN(const auto ends, map.Texts("regions", 2));
    if (map.Has("regions") && ends.size() != 2) {
      return map.Error("regions", "regions must be a list of two, such as [east, west]");
    }
    for (const std::string& end : ends) MR_RETURN_IF_ERROR(CheckRegion(map, "regions", end));
    MR_ASSIGN_OR_RETURN(Line line, ReadLine(map));
    if (map.Has("trunk")) {
      MR_ASSIGN_OR_RETURN(
          line.trunk, ReadTrunk(map, ends.empty() ? "between regions" : ends[0] + " - " + ends[1]));
    }
    if (ends.empty()) {
      if (between_)
        return ErrorAt(name_, item, "a second entry without regions: which pair is it for?");
      between_ = line;
    } else if (ends[0] == ends[1]) {
      return map.Error("regions",
                       fmt::format("{} and {} are the same region; its links are within_region",
                                   ends[0], ends[1]));
    } else if (!region_lines_.emplace(std::minmax(ends[0], ends[1]), line).second) {
      return map.Error("regions", fmt::format("the pair {}, {} is given twice", ends[0], ends[1]));
    }
  }
  return OkStatus();
}

Result<std::vector<int>> ClusterReader::EndsNamed(const YAML::Node& node) {
  if (node.IsScalar() && node.Scalar() == kCoordinator) return std::vector<int>{out_.coordinator()};
  return NodesNamed(node);
}

Status ClusterReader::ReadPairs(const YamlMap& links) {
  MR_ASSIGN_OR_RETURN(const auto items, links.List("pairs", kPairsMax));
  for (const YAML::Node& item : items) {
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(item, "an entry of pairs",
                      {"nodes", "bandwidth", "latency", "trunk", "one_way"}, name_));
    MR_RETURN_IF_ERROR(map.Need("nodes").status());
    MR_ASSIGN_OR_RETURN(const auto ends, map.List("nodes", 2));
    if (ends.size() != 2) return map.Error("nodes", "nodes must be a list of two names");
    MR_ASSIGN_OR_RETURN(const auto from, EndsNamed(ends[0]));
    MR_ASSIGN_OR_RETURN(const auto to, EndsNamed(ends[1]));
    MR_ASSIGN_OR_RETURN(const bool one_way, map.BoolOr("one_way", false));
    MR_ASSIGN_OR_RETURN(Line line, ReadLine(map));
    if (map.Has("trunk")) {
      MR_ASSIGN_OR_RETURN(line.trunk, ReadTrunk(map, ends[0].Scalar() + " - " + ends[1].Scalar()));
    }
    for (int a : from) {
      for (int b : to) {
        if (a == b) return map.Error("nodes", "a node has no link to itself");
        bool is_new = pairs_.emplace(std::pair(a, b), line).second;
        if (!one_way) is_new = pairs_.emplace(std::pair(b, a), line).second && is_new;
        if (!is_new) return map.Error("nodes", "the link between these nodes is given twice");
      }
    }
  }
  return OkStatus();
}

Status ClusterReader::ReadCoordinator(const YamlMap& root) {
  if (root.Has("coordinator")) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, root.Need("coordinator"));
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(node, "coordinator", {"region", "bandwidth", "latency"}, name_));
    if (map.Has("region")) {
      if (map.Has("bandwidth") || map.Has("latency")) {
        return map.Error("region",
                         "give the coordinator a region or a bandwidth and latency, not both");
      }
      MR_ASSIGN_OR_RETURN(coordinator_region_, map.Text("region"));
      return CheckRegion(map, "region", *coordinator_region_);
    }
    MR_ASSIGN_OR_RETURN(coordinator_line_, ReadLine(map));
    return OkStatus();
  }
  // With one region, the coordinator is in it. With one node, the node and the coordinator share a
  // machine.
  if (regions_.size() > 1) {
    return root.Error(
        "coordinator",
        fmt::format("'coordinator' is missing: which region do requests enter at ({})?",
                    fmt::join(regions_, ", ")));
  }
  coordinator_region_ = regions_.front();
  return OkStatus();
}

std::optional<Line> ClusterReader::LineBetween(int from, int to) const {
  if (const auto at = pairs_.find({from, to}); at != pairs_.end()) return at->second;
  const int coordinator = out_.coordinator();
  if (coordinator_line_ && (from == coordinator || to == coordinator)) return coordinator_line_;
  const auto region = [&](int end) -> const std::string& {
    return end == coordinator ? *coordinator_region_ : out_.nodes[static_cast<size_t>(end)].region;
  };
  const std::string &a = region(from), &b = region(to);
  if (a == b) return within_;
  const auto at = region_lines_.find(std::minmax(a, b));
  return at != region_lines_.end() ? at->second : between_;
}

void ClusterReader::BuildLinks() {
  const int coordinator = out_.coordinator();
  for (int from = 0; from <= coordinator; ++from) {
    for (int to = 0; to <= coordinator; ++to) {
      if (from == to) continue;
      const auto line = LineBetween(from, to);
      if (line) out_.links.push_back({from, to, line->bytes_per_s, line->latency, line->trunk});
    }
  }
}

std::optional<NodeIndex> FirstCutOffNode(const ClusterSpec& cluster) {
  const size_t size = cluster.nodes.size() + 1;
  std::vector<std::vector<size_t>> out(size), in(size);
  for (const LinkSpec& link : cluster.links) {
    out[static_cast<size_t>(link.from)].push_back(static_cast<size_t>(link.to));
    in[static_cast<size_t>(link.to)].push_back(static_cast<size_t>(link.from));
  }
  for (const auto& next : {out, in}) {
    std::vector<bool> seen(size);
    std::vector<size_t> open = {size - 1};
    seen[size - 1] = true;
    while (!open.empty()) {
      const size_t node = open.back();
      open.pop_back();
      for (size_t other : next[node]) {
        if (!seen[other]) open.push_back(other);
        seen[other] = true;
      }
    }
    const auto at = std::find(seen.begin(), seen.end(), false);
    if (at != seen.end()) return static_cast<NodeIndex>(at - seen.begin());
  }
  return std::nullopt;
}

}  // namespace millrace::plan
