// The placement as an integer program over kinds of nodes: x[kind, first layer, layers held] counts
// nodes, so alike nodes add no symmetry. Rates are capped at a target F, because no node carries
// more than the whole flow; this makes the relaxation tight. The program has no links: it gives a
// bound for every problem and a plan where links do not bind. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/flow/flow_problem.h"
#include "plan/flow/milp_solver.h"

namespace millrace::plan {

class AggregatedProgram {
 public:
  // `cap`: F. `partial`: the flow is the least covered layer. Otherwise it is a flow over the
  // positions 0..L, which a placement without partial inference carries.
  AggregatedProgram(const FlowProblem& problem, double cap, bool partial);

  // A lower bound on the number of coefficients in the cover of `problem`; needs no program.
  static int64_t CoverTerms(const FlowProblem& problem);

  const LinearProgram& program() const { return program_; }
  // The placement whose flow without links is the objective of `values`.
  Placement Decode(const std::vector<double>& values) const;
  // Only the nodes in `free` may move from `placement`.
  void Fix(const Placement& placement, const std::vector<int>& free);

  // With partial inference, the optimum V for cap F bounds the best flow F* of all placements: V <
  // F means F* = V, and V >= F means F* >= F. A proved bound below the cap therefore bounds F*.
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
