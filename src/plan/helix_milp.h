// Helix's own mixed-integer program, as the released planner writes it (ASPLOS'25, section 4.4 and
// table 3), to compare with: every node holds a layer or more, binary switches with big-M rows open
// the links between ranges that follow each other. Its relaxation is very loose; the planner does
// not use it. Pure; any thread.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/flow_problem.h"
#include "plan/milp_solver.h"

namespace millrace::plan {

struct HelixMilpOptions {
  // Leaves out the rows that only force switches to open: the objective opens them anyway.
  bool remove_redundant = true;
  // Each node keeps so many of its fastest links to others, in either direction. Unset: all.
  std::optional<int> keep_links;
  // Its edges survive pruning: without them a warm start is worth nothing.
  std::optional<Placement> incumbent;
};

class HelixMilp {
 public:
  // REQUIRES: a valid problem in which every node holds a layer or more. Partial inference as the
  // problem says.
  HelixMilp(const FlowProblem& problem, const HelixMilpOptions& options);

  const LinearProgram& program() const { return program_; }
  // The placement in a solution; its flow must be computed anew: switches are rounded.
  Placement Decode(const std::vector<double>& values) const;
  // Links between nodes in the program.
  int num_links() const { return num_links_; }

 private:
  using Terms = std::vector<std::pair<int, double>>;

  void AddNode(int node);
  int AddLink(double capacity, int from, int to);
  void AddCoordinator(int node);
  void AddPair(int i, int j);
  void AddFlowRows();
  std::vector<bool> KeptLinks() const;
  // e_i = start_i + sum k hold_ik, times `factor`, onto `terms`.
  void AddEnd(int node, double factor, Terms& terms) const;

  const FlowProblem& problem_;
  const HelixMilpOptions& options_;
  LinearProgram program_;
  std::vector<int> start_, hold_;  // by node: the column of start_i, of hold_i1
  std::vector<Terms> in_, out_;    // by node: its flow columns
  int num_links_ = 0;
};

}  // namespace millrace::plan
