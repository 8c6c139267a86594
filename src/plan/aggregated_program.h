// The placement as an integer program over kinds of nodes: x[kind, first layer, layers held] counts
// nodes, so that alike nodes are one symbol and not a symmetry. Rates are capped at a target F: no
// node carries more than the whole flow, and the relaxation becomes tight. Links are not in it: a
// bound for every problem, a plan where links do not bind. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/flow_problem.h"
#include "plan/milp_solver.h"

namespace millrace::plan {

class AggregatedProgram {
 public:
  // `cap`: F. `partial`: the cover of every layer is the flow; else a flow over the positions
  // 0..L, which a placement without partial inference carries.
  AggregatedProgram(const FlowProblem& problem, double cap, bool partial);

  // How many coefficients the cover of `problem` has, at least: known before it is built.
  static int64_t CoverTerms(const FlowProblem& problem);

  const LinearProgram& program() const { return program_; }
  // A placement whose flow without links is the objective of `values`.
  Placement Decode(const std::vector<double>& values) const;
  // Only the nodes in `free` may move from `placement`.
  void Fix(const Placement& placement, const std::vector<int>& free);

  // With partial inference, V = the optimum for cap F tells of the best flow F* of all placements:
  // V < F means F* = V; V >= F means F* >= F. So a proved bound below the cap is one of F*.
  double cap() const { return cap_; }

 private:
  struct Kind {
    std::vector<int> nodes;
    int first_column = 0;
  };
  int Column(const Kind& kind, const LayerRange& range) const;
  double Rate(const Kind& kind, int layers) const;
  void AddCounts();
  void AddCover();
  void AddPositionFlow();

  const FlowProblem& problem_;
  double cap_;
  std::vector<Kind> kinds_;
  LinearProgram program_;
  int value_column_ = 0;
};

}  // namespace millrace::plan
