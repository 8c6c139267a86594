// NodeCosts: the step times of a cluster's machines, measured by `millrace profile` on a device of
// that name, or as the cluster file gives them for a node, or else estimated from first principles.
// A node without a profile whose device no catalogue knows is assumed to be like a measured node of
// its device, or else like the slowest one: one such worker must not make a cluster unplannable.
// Immutable after construction; any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/layer_range.h"
#include "core/model_spec.h"
#include "cost/profile.h"
#include "cost/step_cost.h"

namespace millrace::apps {

// --node-profile DEVICE=FILE, repeatable. `entries` must outlive the command.
void AddNodeProfileOption(Command& command, const char* group, std::vector<std::string>* entries);

class NodeCosts {
 public:
  NodeCosts() = default;  // nothing measured
  // kInvalidArgument: an entry that is not DEVICE=FILE or is repeated; a device that no node has; a
  // damaged profile, or one with another number of layers than `spec`.
  static Result<NodeCosts> Load(const std::vector<std::string>& entries, const ClusterSpec& cluster,
                                const ModelSpec& spec);

  // The cost of a step of `layers` on `devices` devices of `node`'s kind together. The empty range
  // [num_layers, num_layers) stands for the part after the layers. kNotFound: the device is
  // unknown. kInvalidArgument: several devices of a measured kind.
  Result<std::unique_ptr<cost::StepCost>> Of(const NodeSpec& node, int devices,
                                             const ModelSpec& spec, LayerRange layers) const;
  // Bytes of one token between two stages. Workers, whose times are measured, send f32; an estimate
  // for other devices assumes the model's type.
  int64_t ActivationBytes(const ModelSpec& spec) const;
  bool measured() const { return !by_device_.empty() || !by_node_.empty(); }
  // The time between two steps; zero if not measured.
  double OverheadSeconds(const NodeSpec& node) const;
  // The source of the times, for the user.
  std::string Describe(const ClusterSpec& cluster) const;

 private:
  struct Measured {
    std::string source;  // the file, for the user
    cost::Profile profile;
  };
  const Measured* Find(const NodeSpec& node) const;
  void AssumeTheRest(const ClusterSpec& cluster);

  std::map<std::string, Measured> by_device_;
  std::map<std::string, Measured> by_node_;  // of the cluster file; a device's profile comes first
  std::map<std::string, std::string> assumed_;  // nodes in by_node_, and which node each is like
};

}  // namespace millrace::apps
