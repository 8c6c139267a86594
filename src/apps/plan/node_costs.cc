#include "apps/plan/node_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "cost/device_catalog.h"
#include "cost/first_principles_cost.h"

namespace millrace::apps {
namespace {

std::set<std::string> DevicesOf(const ClusterSpec& cluster) {
  std::set<std::string> devices;
  for (const NodeSpec& node : cluster.nodes) devices.insert(node.device);
  return devices;
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
    if (profile.num_layers != spec.num_layers) {
      return InvalidArgument(fmt::format(
          "{}: measured with {}, which has {} layers; the model has {}", Printable(file),
          Printable(profile.model), profile.num_layers, spec.num_layers));
    }
    if (!costs.measured_.try_emplace(device, Measured{file, std::move(profile)}).second) {
      return InvalidArgument(
          fmt::format("--node-profile: '{}' has two profiles; give one", Printable(device, 60)));
    }
  }
  return costs;
}

Result<std::unique_ptr<cost::StepCost>> NodeCosts::Of(const NodeSpec& node, int devices,
                                                      const ModelSpec& spec,
                                                      LayerRange layers) const {
  const auto found = measured_.find(node.device);
  if (found != measured_.end()) {
    if (devices > 1) {
      return InvalidArgument(
          fmt::format("node '{}': {} has the times of one '{}', but this node has {}; give "
                      "them a device name of their own",
                      node.name, Printable(found->second.file), node.device, devices));
    }
    return std::unique_ptr<cost::StepCost>(
        std::make_unique<cost::MeasuredCost>(found->second.profile, layers));
  }
  const auto device = cost::FindDevice(node.device);
  if (!device.ok()) return device.status().WithContext(fmt::format("node '{}'", node.name));
  return std::unique_ptr<cost::StepCost>(
      std::make_unique<cost::FirstPrinciplesCost>(spec, layers, *device, devices));
}

double NodeCosts::OverheadSeconds(const NodeSpec& node) const {
  const auto found = measured_.find(node.device);
  if (found == measured_.end() || !found->second.profile.front_end) return 0;
  return found->second.profile.front_end->step_s;
}

std::string NodeCosts::Describe(const ClusterSpec& cluster) const {
  const std::string estimate = cost::FirstPrinciplesCost::kLabel;
  if (measured_.empty()) return estimate + " for each node, not measured";
  std::vector<std::string> parts, estimated;
  for (const std::string& device : DevicesOf(cluster)) {
    const auto found = measured_.find(device);
    if (found == measured_.end()) {
      estimated.push_back(device);
    } else {
      parts.push_back(fmt::format("{} measured ({})", device, Printable(found->second.file)));
    }
  }
  if (!estimated.empty()) {
    parts.push_back(fmt::format("{} for {}", estimate, fmt::join(estimated, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace millrace::apps
