// IncrementalFlow: the maximum flow of a placement, updated while nodes move. The flow through
// moved nodes is taken back along its paths, then augmented again. A move takes a few microseconds
// on clusters of tens of nodes. Owned by one search; one thread.
//
// Vertices are the exits and entries of nodes; the coordinator's exit is the source and its entry
// the sink. Reachable sets are bit sets, so a search for a path reads a few words per node.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/flow/flow_problem.h"

namespace millrace::plan {

struct NodeMove {
  int node = 0;
  LayerRange range;  // empty: unused
};

class IncrementalFlow {
 public:
  // REQUIRES: `problem` outlives this.
  explicit IncrementalFlow(const FlowProblem& problem);

  void Reset(const Placement& placement);
  // Moves nodes and returns the new flow. The search stops at `enough`: pass an upper bound if one
  // is known. REQUIRES: no node twice.
  double Apply(std::span<const NodeMove> moves, double enough);
  // Reverts the last Apply(). At most once per Apply().
  void Undo();

  double value() const { return value_; }
  const Placement& placement() const { return placement_; }

 private:
  using Word = uint64_t;
  struct Change {
    int cell;
    double before;
  };

  int Cell(int from, int to) const { return from * width_ + to; }
  int NodeCell(int node) const { return width_ * width_ + node; }
  Word* Row(std::vector<Word>& bits, int row) { return bits.data() + row * words_; }
  const Word* Row(const std::vector<Word>& bits, int row) const {
    return bits.data() + row * words_;
  }
  void AddFlow(int cell, double amount);
  void SetFlow(int cell, double flow);
  void TakeBack(int node, double amount);     // from the source up to and including `node`
  void TakeForward(int node, double amount);  // from `node`, inclusive, down to the sink
  void Drain(int node);
  void SetRange(int node, LayerRange range);
  void UpdateEdge(int from, int to, bool valid);
  void Augment(double enough);
  bool FindPath();
  void ScanExit(int node);
  bool ScanEntry(int node);
  double AlongPath(double amount, bool apply);
  void Rewind(size_t mark);

  const FlowProblem& problem_;
  int width_, words_;
  double tolerance_;
  double value_ = 0;
  Placement placement_;
  std::vector<double> flow_, capacity_;  // by cell; links that are not valid have capacity 0
  std::vector<Word> open_;               // row u: entries v with residual capacity on u -> v
  std::vector<Word> carry_;              // row v: exits u with flow on u -> v
  std::vector<Word> entry_seen_, exit_seen_;
  std::vector<int> entry_parent_, exit_parent_, queue_;
  std::vector<Change> log_;
  std::vector<NodeMove> undo_moves_;
  size_t drained_mark_ = 0;
  double undo_value_ = 0;
};

}  // namespace millrace::plan
