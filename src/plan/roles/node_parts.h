// NodeParts: the nodes of a plan as the estimates see them. An estimate knows one range of layers
// and one role per node, so a node with several stages becomes one part per stage. Plain values;
// any thread.
//
// A part has a fixed share of its node, as CheckPlan counts it: of several devices those that its
// stage takes, else that part of the node's time that its flow takes in the plan (the stage's part
// of the layers if the plan has no flow for all of them). A flow problem gives it this share of its
// node's rates; a goodput problem gives it the times of its devices, where they are known. It has
// the memory of its devices, or that part of the only device's memory that its layers are. The
// parts of a node share its links and its network card, and nothing limits what goes from one of
// them to another.
//
// Shares do not change when other nodes are lost or added: time that a stage does not need is not
// given to the others of its node. Rates are therefore lower bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan.h"
#include "plan/flow/placement_flow.h"
#include "plan/roles/role_problem.h"

namespace millrace::plan {

class NodeParts {
 public:
  // REQUIRES: each stage of `plan` is on one node of `problem`, and holds no more layers than the
  // node can.
  NodeParts(const FlowProblem& problem, const Plan& plan);

  // Whether a stage has only a share of its node.
  bool divided() const { return divided_; }
  int count() const { return static_cast<int>(parts_.size()); }
  int NodeOf(int part) const { return parts_[static_cast<size_t>(part)].node; }
  // Of its node's time, or of its devices.
  double ShareOf(int part) const { return parts_[static_cast<size_t>(part)].share; }
  const std::vector<int>& PartsOf(int node) const { return nodes_[static_cast<size_t>(node)]; }

  // `problem`, that of the constructor or one with the same nodes, with the parts as its nodes. The
  // name of one of several parts has the number of its stage.
  FlowProblem Divide(const FlowProblem& problem) const;
  // The same with times, memory, latencies, trunks and the reach of KV. `losable` stays empty.
  GoodputProblem Divide(const GoodputProblem& problem) const;

  // The plan's layers and roles, by part.
  RolePlacement Placed() const;
  // Without the parts of a node.
  RolePlacement WithoutNode(int node) const;

  // The flow of `layers` on the parts within the links between their nodes: the maximum flow, and
  // while it overloads a link, the same with that link divided between the parts as it was.
  PlacementFlow Flow(const FlowProblem& of_parts, const Placement& layers) const;

  // A plan of the parts as one of the nodes. A node is unused if all its parts are.
  Plan Merge(Plan of_parts) const;

 private:
  struct Part {
    int node = 0;
    std::optional<int> stage;
    double share = 1, memory_share = 1;
    int devices = 1;
    LayerRange layers;
    StageRole role = StageRole::kBoth;
  };
  void SetShares(const FlowProblem& problem, const Plan& plan, const std::vector<int>& parts);
  int MaxLayers(const FlowNode& node, const Part& part) const;
  DevicesShare DevicesOf(const GoodputProblem& problem, const Part& part,
                         const FlowNode& flow) const;
  void DivideTables(const GoodputProblem& problem, GoodputProblem& out) const;
  bool Narrow(const PlacementFlow& flow, const FlowProblem& of_parts, FlowProblem& narrowed) const;
  static bool IsWhole(const Part& part) { return part.share == 1 && part.memory_share == 1; }
  // The parts of an end of a link, and the end of a part; the coordinator is the last of both.
  std::vector<int> EndsOf(int node) const;
  int EndOf(int part) const {
    return part < count() ? NodeOf(part) : static_cast<int>(nodes_.size());
  }

  std::vector<Part> parts_;              // by node, then by stage
  std::vector<std::vector<int>> nodes_;  // the parts of each
  bool divided_ = false;
};

}  // namespace millrace::plan
