// ClusterReader does the work of ParseClusterYaml; one object per file. Internal to plan/io. One
// thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/cluster_spec.h"
#include "plan/io/yaml_reader.h"

namespace millrace::plan {

// The properties of a link entry, before it is assigned to pairs of nodes.
struct Line {
  double bytes_per_s = 0;
  Duration latency;
  std::optional<int> trunk;
};

class ClusterReader {
 public:
  explicit ClusterReader(std::string_view name) : name_(name) {}
  Result<ClusterSpec> Read(std::string_view text);

 private:
  Status ReadNodes(const YamlMap& root);
  Status ReadNode(const YAML::Node& node);
  Status CheckRegion(const YamlMap& map, std::string_view key, const std::string& region);
  Status ReadTrunks(const YamlMap& root);
  Status ReadLinks(const YamlMap& root);
  Status ReadBetween(const YamlMap& links);
  Status ReadPairs(const YamlMap& links);
  Status ReadCoordinator(const YamlMap& root);
  Status ReadAffinity(const YamlMap& root);
  Status ReadServer(const YamlMap& root);
  Status CheckConnected(const YamlMap& root);
  Result<Line> ReadLine(const YamlMap& map);
  Result<int> ReadTrunk(const YamlMap& map, std::string default_name);
  // Adds one link per ordered pair that the file connects.
  void BuildLinks();
  std::optional<Line> LineBetween(int from, int to) const;

  // The nodes that a name stands for: a group's nodes, or one. An unknown name is an error at
  // `node`.
  Result<std::vector<NodeIndex>> NodesNamed(const YAML::Node& node);
  Result<std::vector<int>> EndsNamed(const YAML::Node& node);

  const std::string_view name_;
  ClusterSpec out_;
  std::vector<std::string> regions_;
  bool regions_listed_ = false;
  std::map<std::string, std::vector<NodeIndex>> named_;  // groups and single nodes
  std::vector<YAML::Node> places_;                       // position of each node, for errors
  std::optional<Line> within_, between_;                 // defaults
  std::map<std::pair<std::string, std::string>, Line> region_lines_;
  std::optional<std::string> coordinator_region_;
  std::optional<Line> coordinator_line_;
  std::map<std::pair<int, int>, Line> pairs_;
};

}  // namespace millrace::plan
