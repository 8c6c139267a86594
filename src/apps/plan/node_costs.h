// NodeCosts: the step times of a cluster's machines, measured by `millrace profile` on a device of
// that name or else estimated from first principles. Immutable after construction; any thread.
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
  // profile with another number of layers than `spec`.
  static Result<NodeCosts> Load(const std::vector<std::string>& entries, const ClusterSpec& cluster,
                                const ModelSpec& spec);

  // The cost of a step of `layers` on `devices` devices of `node`'s kind together. The empty range
  // [num_layers, num_layers) stands for the part after the layers. kNotFound: the device is
  // unknown. kInvalidArgument: several devices of a measured kind.
  Result<std::unique_ptr<cost::StepCost>> Of(const NodeSpec& node, int devices,
                                             const ModelSpec& spec, LayerRange layers) const;
  // The time between two steps; zero if not measured.
  double OverheadSeconds(const NodeSpec& node) const;
  // The source of the times, for the user.
  std::string Describe(const ClusterSpec& cluster) const;

 private:
  struct Measured {
    std::string file;
    cost::Profile profile;
  };
  std::map<std::string, Measured> measured_;  // by device
};

}  // namespace millrace::apps
