// NodeCosts: what steps take on the machines of a cluster: as `millrace profile` measured it on a
// device of that name, else an estimate from first principles. Immutable after construction; any
// thread.
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

// --node-profile DEVICE=FILE, as often as wanted; `entries` outlives the command.
void AddNodeProfileOption(Command& command, const char* group, std::vector<std::string>* entries);

class NodeCosts {
 public:
  NodeCosts() = default;  // nobody measured anything
  // kInvalidArgument: an entry that is not DEVICE=FILE, or comes twice; a device that no node is; a
  // profile of another number of layers than `spec` has.
  static Result<NodeCosts> Load(const std::vector<std::string>& entries, const ClusterSpec& cluster,
                                const ModelSpec& spec);

  // A step of `layers` on `devices` devices like those of `node`, all of them together; of
  // [num_layers, num_layers) what comes behind the layers. kNotFound: nobody knows the
  // device. kInvalidArgument: several of a measured one.
  Result<std::unique_ptr<cost::StepCost>> Of(const NodeSpec& node, int devices,
                                             const ModelSpec& spec, LayerRange layers) const;
  // Between two steps; zero where it was not measured.
  double OverheadSeconds(const NodeSpec& node) const;
  // Where they come from, for the reader.
  std::string Describe(const ClusterSpec& cluster) const;

 private:
  struct Measured {
    std::string file;
    cost::Profile profile;
  };
  std::map<std::string, Measured> measured_;  // by device
};

}  // namespace millrace::apps
