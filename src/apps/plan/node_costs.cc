#include "apps/plan/node_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "cost/device_catalog.h"
#include "cost/first_principles_cost.h"
#include "cost/memory_model.h"

namespace millrace::apps {
namespace {

// To compare machines by.
constexpr cost::BatchShape kUsualStep{.decode_sequences = 8, .decode_context = 8 * 512};

std::set<std::string> DevicesOf(const ClusterSpec& cluster) {
  std::set<std::string> devices;
  for (const NodeSpec& node : cluster.nodes) devices.insert(node.device);
  return devices;
}

Status CheckLayers(const std::string& source, const cost::Profile& profile, const ModelSpec& spec) {
  if (profile.num_layers == spec.num_layers) return OkStatus();
  return InvalidArgument(fmt::format("{}: measured with {}, which has {} layers; the model has {}",
                                     Printable(source), Printable(profile.model),
                                     profile.num_layers, spec.num_layers));
}

}  // namespace

void AddNodeProfileOption(Command& command, const char* group, std::vector<std::string>* entries) {
  command.Add(group, TextListOption("node-profile", "DEVICE=FILE", entries),
              "Step times that 'millrace profile' measured on the nodes of a device, instead of an "
              "estimate; repeat it for several devices");
}

Result<NodeCosts> NodeCosts::Load(const std::vector<std::string>& entries,
                                  const ClusterSpec& cluster, const ModelSpec& spec) {
  NodeCosts costs;
  const std::set<std::string> devices = DevicesOf(cluster);
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size()) {
      return InvalidArgument(
          fmt::format("--node-profile must be DEVICE=FILE, got '{}'", Printable(entry, 80)));
    }
    const std::string device = entry.substr(0, equals), file = entry.substr(equals + 1);
    if (!devices.contains(device)) {
      return InvalidArgument(
          fmt::format("--node-profile: no node has the device '{}'; the cluster has {}",
                      Printable(device, 60), fmt::join(devices, ", ")));
    }
    MR_ASSIGN_OR_RETURN(cost::Profile profile, cost::LoadProfile(file));
    MR_RETURN_IF_ERROR(CheckLayers(file, profile, spec));
    if (!costs.by_device_.try_emplace(device, Measured{file, std::move(profile)}).second) {
      return InvalidArgument(
          fmt::format("--node-profile: '{}' has two profiles; give one", Printable(device, 60)));
    }
  }
  for (const NodeSpec& node : cluster.nodes) {
    if (node.profile.empty()) continue;
    std::string source = fmt::format("the profile of node '{}'", Printable(node.name, 60));
    MR_ASSIGN_OR_RETURN(cost::Profile profile, cost::ParseProfile(node.profile, source));
    MR_RETURN_IF_ERROR(CheckLayers(source, profile, spec));
    if (const Status real = cost::CheckPlausible(profile); !real.ok()) {
      return real.WithContext(source);
    }
    costs.by_node_.emplace(node.name, Measured{std::move(source), std::move(profile)});
  }
  costs.AssumeTheRest(cluster);
  return costs;
}

void NodeCosts::AssumeTheRest(const ClusterSpec& cluster) {
  const auto seconds = [this](const NodeSpec* node) {
    const cost::Profile& profile = Find(*node)->profile;
    return cost::MeasuredCost(profile, {0, profile.num_layers}).Seconds(kUsualStep);
  };
  std::vector<const NodeSpec*> known, unknown;
  for (const NodeSpec& node : cluster.nodes) {
    if (Find(node) != nullptr) {
      known.push_back(&node);
    } else if (!cost::FindDevice(node.device).ok()) {
      unknown.push_back(&node);
    }
  }
  if (known.empty()) return;
  const NodeSpec* slowest = *std::ranges::max_element(known, {}, seconds);
  for (const NodeSpec* node : unknown) {
    const auto twin = std::ranges::find(known, node->device, &NodeSpec::device);
    const NodeSpec* like = twin == known.end() ? slowest : *twin;
    by_node_.emplace(node->name, *Find(*like));
    assumed_.emplace(node->name, like->name);
  }
}

const NodeCosts::Measured* NodeCosts::Find(const NodeSpec& node) const {
  if (const auto found = by_device_.find(node.device); found != by_device_.end()) {
    return &found->second;
  }
  const auto found = by_node_.find(node.name);
  return found == by_node_.end() ? nullptr : &found->second;
}

Result<std::unique_ptr<cost::StepCost>> NodeCosts::Of(const NodeSpec& node, int devices,
                                                      const ModelSpec& spec,
                                                      LayerRange layers) const {
  if (const Measured* found = Find(node)) {
    if (devices > 1) {
      return InvalidArgument(
          fmt::format("node '{}': {} has the times of one '{}', but this node has {}; give "
                      "them a device name of their own",
                      node.name, Printable(found->source), node.device, devices));
    }
    return std::unique_ptr<cost::StepCost>(
        std::make_unique<cost::MeasuredCost>(found->profile, layers));
  }
  const auto device = cost::FindDevice(node.device);
  if (!device.ok()) {
    return NotFound(fmt::format(
        "node '{}': {}. Or measure it: `millrace profile` writes what --node-profile reads, and "
        "`cluster describe --wait 60` waits until each worker has a profile",
        Printable(node.name, 60), device.status().message()));
  }
  return std::unique_ptr<cost::StepCost>(
      std::make_unique<cost::FirstPrinciplesCost>(spec, layers, *device, devices));
}

int64_t NodeCosts::ActivationBytes(const ModelSpec& spec) const {
  return measured() ? spec.hidden_size * static_cast<int64_t>(BytesOf(DType::kF32))
                    : cost::ActivationBytesPerToken(spec);
}

double NodeCosts::OverheadSeconds(const NodeSpec& node) const {
  const Measured* found = Find(node);
  return found != nullptr && found->profile.front_end ? found->profile.front_end->step_s : 0;
}

std::string NodeCosts::Describe(const ClusterSpec& cluster) const {
  const std::string estimate = cost::FirstPrinciplesCost::kLabel;
  if (!measured()) return estimate + " for each node, not measured";
  std::vector<std::string> parts;
  for (const auto& [device, found] : by_device_) {
    parts.push_back(fmt::format("{} measured ({})", device, Printable(found.source)));
  }
  std::set<std::string> estimated;
  size_t own = 0;
  for (const NodeSpec& node : cluster.nodes) {
    if (Find(node) == nullptr) estimated.insert(node.device);
    const bool assumed = assumed_.contains(node.name);
    if (!by_device_.contains(node.device) && by_node_.contains(node.name) && !assumed) ++own;
  }
  if (own > 0) {
    parts.push_back(
        fmt::format("{} of {} nodes measured (as the cluster says)", own, cluster.nodes.size()));
  }
  for (const auto& [node, like] : assumed_) {
    parts.push_back(fmt::format("{} has no profile and is assumed to be like {}", Printable(node),
                                Printable(like)));
  }
  if (!estimated.empty()) {
    parts.push_back(fmt::format("{} for {}", estimate, fmt::join(estimated, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace millrace::apps
