#include "plan/io/plan_yaml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <iterator>
#include <map>
#include <span>

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/suggest.h"
#include "plan/io/text_fields.h"
#include "plan/io/yaml_reader.h"

namespace millrace::plan {
namespace {

constexpr int kFormat = 1;  // the version of the format
constexpr int kLayersMax = 1024;
constexpr int kTensorParallelMax = 1024;
constexpr size_t kStagesMax = 4096;
constexpr size_t kEdgesMax = 1 << 20;
constexpr std::array<std::string_view, 3> kRoles = {"both", "prefill", "decode"};
constexpr std::array<std::string_view, 4> kPhases = {"both", "prefill", "hand-over", "decode"};

// Writes a text as a YAML value: unchanged if that is safe, else in double quotes.
std::string Quoted(const std::string& text) {
  const bool plain = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) &&
                     std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
                     });
  std::string lower;
  for (unsigned char c : text) lower += static_cast<char>(std::tolower(c));
  return plain && lower != "null" ? text : DumpJson(text);
}

std::string Flow(double tokens_per_s) { return FormatQuantity(Quantity::kFlow, tokens_per_s); }

std::string End(const std::optional<int>& stage) {
  return stage ? std::to_string(*stage) : std::string(kCoordinator);
}

class Fingerprint {
 public:
  void Add(uint64_t value) { hash_ = Mix64(hash_ ^ Mix64(value + 1)); }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(const std::string& text) {
    Add(uint64_t{text.size()});
    for (unsigned char c : text) Add(uint64_t{c});
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x6d696c6c72616365;
};

std::string FingerprintText(const ClusterSpec& cluster) {
  return fmt::format("{:016x}", ClusterFingerprint(cluster));
}

class PlanReader {
 public:
  // Without a cluster, every named node exists.
  explicit PlanReader(std::string_view name) : name_(name) {}
  PlanReader(std::string_view name, const ClusterSpec& cluster) : name_(name), cluster_(&cluster) {
    for (size_t i = 0; i < cluster.nodes.size(); ++i) {
      nodes_[cluster.nodes[i].name] = static_cast<NodeIndex>(i);
    }
  }

  Result<Plan> Read(std::string_view text) {
    MR_ASSIGN_OR_RETURN(const YAML::Node document, LoadYaml(text, name_));
    MR_ASSIGN_OR_RETURN(
        const YamlMap root,
        YamlMap::Open(document, "the plan file",
                      {"format", "model", "layers", "cluster", "cluster_fingerprint", "epoch",
                       "partial_inference", "flow", "bound", "stages", "edges", "unused"},
                      name_));
    MR_RETURN_IF_ERROR(CheckFormat(root));
    MR_ASSIGN_OR_RETURN(out_.cluster, root.TextOr("cluster", ""));
    if (root.Has("cluster_fingerprint")) MR_RETURN_IF_ERROR(ReadFingerprint(root));
    MR_ASSIGN_OR_RETURN(out_.model, root.Text("model"));
    MR_ASSIGN_OR_RETURN(const int64_t layers, root.Integer("layers", 1, kLayersMax));
    out_.num_layers = static_cast<int>(layers);
    MR_ASSIGN_OR_RETURN(out_.epoch, root.IntegerOr("epoch", 0, 0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(out_.partial_inference, root.BoolOr("partial_inference", true));
    MR_RETURN_IF_ERROR(ReadFlow(root));
    MR_RETURN_IF_ERROR(root.Need("stages").status());
    MR_ASSIGN_OR_RETURN(const auto stages, root.List("stages", kStagesMax));
    for (const YAML::Node& stage : stages) MR_RETURN_IF_ERROR(ReadStage(stage));
    MR_ASSIGN_OR_RETURN(const auto edges, root.List("edges", kEdgesMax));
    for (const YAML::Node& edge : edges) MR_RETURN_IF_ERROR(ReadEdge(edge));
    const bool roles = std::ranges::any_of(
        out_.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
    if (!root.Has("edges") && !roles) AddObviousEdges();
    MR_ASSIGN_OR_RETURN(const auto unused, root.List("unused", ClusterSpec::kNodesMax));
    for (const YAML::Node& node : unused) MR_RETURN_IF_ERROR(ReadUnused(node));
    return std::move(out_);
  }

  WorkerPlan Named(Plan plan) && { return {std::move(plan), std::move(names_), fingerprint_}; }

 private:
  // A file without a format has the first one.
  static Status CheckFormat(const YamlMap& root) {
    MR_ASSIGN_OR_RETURN(const int64_t format, root.IntegerOr("format", 1, 1, INT64_MAX));
    if (format <= kFormat) return OkStatus();
    return root.Error("format", fmt::format("the plan has format version {}, this program reads "
                                            "version {}; plan again with this program, or use the "
                                            "release that wrote the plan",
                                            format, kFormat));
  }

  Status ReadFlow(const YamlMap& root) {
    if (!root.Has("flow") && !root.Has("bound")) return OkStatus();
    MR_ASSIGN_OR_RETURN(out_.tokens_per_s, root.Amount("flow", Quantity::kFlow));
    MR_ASSIGN_OR_RETURN(out_.tokens_per_s_bound, root.Amount("bound", Quantity::kFlow));
    return OkStatus();
  }

  // Adds edges with equal flow from each stage to the stages that can follow it. The edges of a
  // plan with roles follow from the roles (cluster/control/layout/layout.h).
  void AddObviousEdges() {
    const auto count = static_cast<int>(out_.stages.size());
    const auto layers = [this](int stage) {
      return out_.stages[static_cast<size_t>(stage)].layers;
    };
    for (int from = 0; from < count; ++from) {
      const int end = layers(from).end;
      if (layers(from).begin == 0) out_.edges.push_back({std::nullopt, from, 1});
      if (end == out_.num_layers) out_.edges.push_back({from, std::nullopt, 1});
      for (int to = 0; to < count; ++to) {
        const bool follows = out_.partial_inference
                                 ? layers(to).begin <= end && end < layers(to).end
                                 : layers(to).begin == end;
        if (to != from && follows) out_.edges.push_back({from, to, 1});
      }
    }
  }

  // Without a cluster, anything is accepted.
  Status ReadFingerprint(const YamlMap& root) {
    const Result<std::string> text = root.Text("cluster_fingerprint");
    if (text.ok()) fingerprint_ = *text;
    if (cluster_ == nullptr) return OkStatus();
    MR_RETURN_IF_ERROR(text.status());
    const std::string wanted = FingerprintText(*cluster_);
    if (fingerprint_ == wanted) return OkStatus();
    return root.Error("cluster_fingerprint",
                      fmt::format("the plan was made for another cluster: '{}' with fingerprint "
                                  "{}; this one is '{}' with {}; plan again for it",
                                  Printable(out_.cluster, 60), Printable(fingerprint_, 40),
                                  Printable(cluster_->name, 60), wanted));
  }

  Result<NodeIndex> Node(const std::string& node, const YamlMap& map, std::string_view key) {
    if (const auto at = nodes_.find(node); at != nodes_.end()) return at->second;
    if (cluster_ == nullptr) return NewNode(node, map, key);
    std::vector<std::string> names;
    for (const auto& [known, index] : nodes_) names.push_back(known);
    const auto guess = Suggest(node, names);
    return map.Error(key, fmt::format("the cluster has no node '{}'{}", Printable(node, 60),
                                      guess ? fmt::format("; did you mean {}?", *guess) : ""));
  }

  Result<NodeIndex> NewNode(const std::string& node, const YamlMap& map, std::string_view key) {
    if (names_.size() == ClusterSpec::kNodesMax) {
      return map.Error(key, fmt::format("more than {} workers", ClusterSpec::kNodesMax));
    }
    const auto index = static_cast<NodeIndex>(names_.size());
    names_.push_back(node);
    nodes_[node] = index;
    return index;
  }

  // The index of the key's value in `names`; 0 if the key is missing.
  static Result<size_t> OneOf(const YamlMap& map, std::string_view key,
                              std::span<const std::string_view> names) {
    MR_ASSIGN_OR_RETURN(const std::string name, map.TextOr(key, std::string(names[0])));
    const auto known = std::ranges::find(names, name);
    if (known != names.end()) return static_cast<size_t>(known - names.begin());
    return map.Error(key, fmt::format("{} must be one of {}, got '{}'", key, fmt::join(names, ", "),
                                      Printable(name, 40)));
  }

  Status ReadStage(const YAML::Node& node) {
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(node, "a stage", {"stage", "nodes", "layers", "role", "tensor_parallel"},
                      name_));
    const auto index = static_cast<int64_t>(out_.stages.size());
    MR_RETURN_IF_ERROR(map.Integer("stage", index, index).status());
    StagePlan stage;
    MR_RETURN_IF_ERROR(map.Need("nodes").status());
    MR_ASSIGN_OR_RETURN(const auto names, map.Texts("nodes", ClusterSpec::kNodesMax));
    if (names.empty()) return map.Error("nodes", "a stage needs at least one node");
    for (const std::string& name : names) {
      MR_ASSIGN_OR_RETURN(const NodeIndex member, Node(name, map, "nodes"));
      stage.nodes.push_back(member);
    }
    MR_RETURN_IF_ERROR(map.Need("layers").status());
    MR_ASSIGN_OR_RETURN(const auto ends, map.Texts("layers", 2));
    const auto begin = ends.size() == 2 ? IntegerIn(ends[0]) : std::nullopt;
    const auto end = ends.size() == 2 ? IntegerIn(ends[1]) : std::nullopt;
    if (!begin || !end || *begin < 0 || *begin >= *end || *end > out_.num_layers) {
      return map.Error("layers", fmt::format("layers must be [BEGIN, END] with 0 <= BEGIN < END <= "
                                             "{}, the layers of the model",
                                             out_.num_layers));
    }
    stage.layers = {static_cast<int>(*begin), static_cast<int>(*end)};
    MR_ASSIGN_OR_RETURN(const size_t role, OneOf(map, "role", kRoles));
    stage.role = static_cast<StageRole>(role);
    MR_ASSIGN_OR_RETURN(const int64_t degree, map.IntegerOr("tensor_parallel", UsualDegree(stage),
                                                            1, kTensorParallelMax));
    stage.tensor_parallel = static_cast<int>(degree);
    out_.stages.push_back(std::move(stage));
    return OkStatus();
  }

  // Plans of 0.2.0 do not say it: a stage has all devices of its node.
  int64_t UsualDegree(const StagePlan& stage) const {
    if (cluster_ == nullptr || stage.nodes.size() > 1) return 1;
    const NodeSpec& node = cluster_->nodes[static_cast<size_t>(stage.nodes.front())];
    return std::min<int64_t>(node.device_count, kTensorParallelMax);
  }

  Result<std::optional<int>> StageOf(const YamlMap& map, std::string_view key) const {
    MR_ASSIGN_OR_RETURN(const std::string text, map.Text(key));
    if (text == kCoordinator) return std::optional<int>();
    const auto index = IntegerIn(text);
    const auto stages = static_cast<int64_t>(out_.stages.size());
    if (index && *index >= 0 && *index < stages) {
      return std::optional<int>(static_cast<int>(*index));
    }
    return map.Error(key, fmt::format("{} must be 'coordinator' or a stage in [0, {}], got '{}'",
                                      key, stages - 1, Printable(text, 40)));
  }

  Status ReadEdge(const YAML::Node& node) {
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "an edge", {"from", "to", "flow", "phase"}, name_));
    PlanEdge edge;
    MR_ASSIGN_OR_RETURN(edge.from, StageOf(map, "from"));
    MR_ASSIGN_OR_RETURN(edge.to, StageOf(map, "to"));
    if (edge.from == edge.to) return map.Error("to", "an edge must join two different ends");
    MR_ASSIGN_OR_RETURN(edge.tokens_per_s, map.Amount("flow", Quantity::kFlow));
    MR_ASSIGN_OR_RETURN(const size_t phase, OneOf(map, "phase", kPhases));
    edge.phase = static_cast<EdgePhase>(phase);
    if (edge.phase == EdgePhase::kHandOver && (!edge.from || !edge.to)) {
      return map.Error("phase", "a hand-over goes from a stage to a stage");
    }
    out_.edges.push_back(edge);
    return OkStatus();
  }

  Status ReadUnused(const YAML::Node& node) {
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "an unused node", {"node", "reason"}, name_));
    MR_ASSIGN_OR_RETURN(const std::string text, map.Text("node"));
    MR_ASSIGN_OR_RETURN(const NodeIndex index, Node(text, map, "node"));
    MR_ASSIGN_OR_RETURN(std::string reason, map.Text("reason"));
    out_.unused.push_back({index, std::move(reason)});
    return OkStatus();
  }

  const std::string_view name_;
  const ClusterSpec* const cluster_ = nullptr;
  std::map<std::string, NodeIndex> nodes_;
  std::vector<std::string> names_;  // without a cluster: by index
  std::string fingerprint_;
  Plan out_;
};

}  // namespace

std::string_view RoleName(StageRole role) { return kRoles[static_cast<size_t>(role)]; }

std::string_view PhaseName(EdgePhase phase) { return kPhases[static_cast<size_t>(phase)]; }

uint64_t ClusterFingerprint(const ClusterSpec& cluster) {
  Fingerprint print;
  for (const NodeSpec& node : cluster.nodes) {
    print.Add(node.name);
    print.Add(node.region);
    print.Add(node.device);
    print.Add(static_cast<uint64_t>(node.device_count));
    print.Add(static_cast<uint64_t>(node.memory_bytes));
    print.Add(node.nic_bytes_per_s.value_or(0));
  }
  for (const TrunkSpec& trunk : cluster.trunks) print.Add(trunk.bytes_per_s);
  for (const LinkSpec& link : cluster.links) {
    print.Add(static_cast<uint64_t>(link.from));
    print.Add(static_cast<uint64_t>(link.to));
    print.Add(link.bytes_per_s);
    print.Add(static_cast<uint64_t>(link.latency.ns));
    print.Add(static_cast<uint64_t>(link.trunk.value_or(-1)));
  }
  return print.value();
}

WorkerPlan OnWorkers(Plan plan, const ClusterSpec& cluster) {
  WorkerPlan out{.plan = std::move(plan), .cluster_fingerprint = FingerprintText(cluster)};
  for (const NodeSpec& node : cluster.nodes) out.workers.push_back(node.name);
  return out;
}

namespace {

// `cluster`: of the plan's nodes; null: not known.
std::string WriteYaml(const WorkerPlan& named, const ClusterSpec* cluster) {
  const Plan& plan = named.plan;
  const auto has_devices = [cluster](NodeIndex node) {
    return cluster != nullptr && cluster->nodes[static_cast<size_t>(node)].device_count > 1;
  };
  const auto name = [&named](NodeIndex node) {
    return Quoted(named.workers[static_cast<size_t>(node)]);
  };
  const double gap =
      plan.tokens_per_s_bound > 0 ? 1 - plan.tokens_per_s / plan.tokens_per_s_bound : 0;
  std::string out =
      "# A plan of millrace. Layers are half-open: [0, 12] holds the layers 0 to 11.\n";
  auto at = std::back_inserter(out);
  fmt::format_to(at, "format: {}\nmodel: {}\nlayers: {}\n", kFormat, Quoted(plan.model),
                 plan.num_layers);
  fmt::format_to(at, "cluster: {}\n", Quoted(plan.cluster));
  if (!named.cluster_fingerprint.empty()) {
    fmt::format_to(at, "cluster_fingerprint: {}\n", DumpJson(named.cluster_fingerprint));
  }
  fmt::format_to(at, "epoch: {}\n", plan.epoch);
  fmt::format_to(at, "partial_inference: {}\n", plan.partial_inference);
  fmt::format_to(at, "flow: {}\nbound: {}  # no plan carries more; gap {:.2f} %\n",
                 Flow(plan.tokens_per_s), Flow(plan.tokens_per_s_bound), 100 * gap);
  out += plan.stages.empty() ? "stages: []\n" : "stages:\n";
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    std::vector<std::string> nodes;
    for (NodeIndex node : stage.nodes) nodes.push_back(name(node));
    fmt::format_to(at, "  - {{stage: {}, nodes: [{}], layers: [{}, {}], role: {}", i,
                   fmt::join(nodes, ", "), stage.layers.begin, stage.layers.end,
                   RoleName(stage.role));
    if (stage.tensor_parallel != 1 || std::ranges::any_of(stage.nodes, has_devices)) {
      fmt::format_to(at, ", tensor_parallel: {}", stage.tensor_parallel);
    }
    out += "}\n";
  }
  out += plan.edges.empty() ? "edges: []\n" : "edges:\n";
  for (const PlanEdge& edge : plan.edges) {
    fmt::format_to(at, "  - {{from: {}, to: {}, flow: {}", End(edge.from), End(edge.to),
                   Flow(edge.tokens_per_s));
    if (edge.phase != EdgePhase::kBoth) {
      fmt::format_to(at, ", phase: {}", PhaseName(edge.phase));
    }
    out += "}\n";
  }
  out += plan.unused.empty() ? "unused: []\n" : "unused:\n";
  for (const UnusedNode& unused : plan.unused) {
    fmt::format_to(at, "  - {{node: {}, reason: {}}}\n", name(unused.node),
                   DumpJson(unused.reason));
  }
  return out;
}

}  // namespace

std::string WritePlanYaml(const Plan& plan, const ClusterSpec& cluster) {
  return WriteYaml(OnWorkers(plan, cluster), &cluster);
}

std::string WritePlanYaml(const WorkerPlan& named) { return WriteYaml(named, nullptr); }

Result<Plan> ParsePlanYaml(std::string_view text, std::string_view name,
                           const ClusterSpec& cluster) {
  return PlanReader(name, cluster).Read(text);
}

Result<WorkerPlan> ParseWorkerPlan(std::string_view text, std::string_view name) {
  PlanReader reader(name);
  MR_ASSIGN_OR_RETURN(Plan plan, reader.Read(text));
  return std::move(reader).Named(std::move(plan));
}

}  // namespace millrace::plan
