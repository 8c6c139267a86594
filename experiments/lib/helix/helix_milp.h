// Helix's own mixed-integer program, as the released planner writes it (ASPLOS'25, section 4.4 and
// table 3), for comparison. Every node holds at least one layer; binary switches with big-M rows
// open the links between adjoining ranges. Its relaxation is very loose, so the planner does not
// use it. Pure; any thread.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/flow/flow_problem.h"
#include "plan/flow/milp_solver.h"

namespace millrace::experiments::helix {

struct HelixMilpOptions {
  // Leaves out the rows that only force switches open: the objective opens them anyway.
  bool remove_redundant = true;
  // Each node keeps this many of its fastest links to others, in either direction. Unset: all.
  std::optional<int> keep_links;
  // Pruning keeps its edges; without them a warm start is useless.
  std::optional<plan::Placement> incumbent;
};

class HelixMilp {
 public:
  // REQUIRES: a valid problem in which every node holds at least one layer. Partial inference is as
  // the problem says.
  HelixMilp(const plan::FlowProblem& problem, const HelixMilpOptions& options);

  const plan::LinearProgram& program() const { return program_; }
  // The placement in a solution. Recompute its flow: switches are rounded.
  plan::Placement Decode(const std::vector<double>& values) const;
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
  // Adds `factor` times e_i = start_i + sum k hold_ik to `terms`.
  void AddEnd(int node, double factor, Terms& terms) const;

  const plan::FlowProblem& problem_;
  const HelixMilpOptions& options_;
  plan::LinearProgram program_;
  std::vector<int> start_, hold_;  // by node: the columns of start_i and of hold_i1
  std::vector<Terms> in_, out_;    // by node: its flow columns
  int num_links_ = 0;
};

}  // namespace millrace::experiments::helix
