#include "plan/flow/incremental_flow.h"

#include <algorithm>
#include <bit>

#include "plan/flow/flow_bounds.h"

namespace millrace::plan {
namespace {

constexpr int kWordBits = 64;
constexpr double kRelativeTolerance = 1e-9;  // of the bound: smaller residual capacity is rounding

}  // namespace

IncrementalFlow::IncrementalFlow(const FlowProblem& problem)
    : problem_(problem),
      width_(problem.num_nodes() + 1),
      words_((width_ + kWordBits - 1) / kWordBits),
      tolerance_(LayerSumBound(problem) * kRelativeTolerance),
      placement_(problem.num_nodes()),
      flow_(static_cast<size_t>(width_) * width_ + width_, 0),
      capacity_(flow_.size(), 0),
      open_(static_cast<size_t>(width_) * words_, 0),
      carry_(open_),
      entry_seen_(words_, 0),
      exit_seen_(words_, 0),
      entry_parent_(width_, 0),
      exit_parent_(width_, 0) {}

void IncrementalFlow::Reset(const Placement& placement) {
  std::fill(flow_.begin(), flow_.end(), 0.0);
  std::fill(capacity_.begin(), capacity_.end(), 0.0);
  std::fill(open_.begin(), open_.end(), Word{0});
  std::fill(carry_.begin(), carry_.end(), Word{0});
  placement_.assign(placement_.size(), {});
  log_.clear();
  value_ = 0;
  for (int i = 0; i < problem_.num_nodes(); ++i) SetRange(i, placement[i]);
  Augment(kTokenRateMax);
}

void IncrementalFlow::SetFlow(int cell, double flow) {
  flow_[cell] = flow;
  const int from = cell / width_, to = cell % width_;
  if (from >= width_) return;  // a node's own edge: no bits
  const Word to_bit = Word{1} << (to % kWordBits), from_bit = Word{1} << (from % kWordBits);
  Word& open = Row(open_, from)[to / kWordBits];
  Word& carry = Row(carry_, to)[from / kWordBits];
  open = capacity_[cell] - flow > tolerance_ ? open | to_bit : open & ~to_bit;
  carry = flow > tolerance_ ? carry | from_bit : carry & ~from_bit;
}

void IncrementalFlow::AddFlow(int cell, double amount) {
  log_.push_back({cell, flow_[cell]});
  SetFlow(cell, flow_[cell] + amount);
}

void IncrementalFlow::TakeBack(int node, double amount) {
  if (node == width_ - 1) return;
  AddFlow(NodeCell(node), -amount);
  for (int w = 0; w < words_; ++w) {
    // Copies the word: taking flow back clears bits of the row.
    for (Word bits = Row(carry_, node)[w]; bits != 0 && amount > tolerance_; bits &= bits - 1) {
      const int u = w * kWordBits + std::countr_zero(bits);
      const double part = std::min(amount, flow_[Cell(u, node)]);
      AddFlow(Cell(u, node), -part);
      TakeBack(u, part);
      amount -= part;
    }
  }
}

void IncrementalFlow::TakeForward(int node, double amount) {
  if (node == width_ - 1) return;
  AddFlow(NodeCell(node), -amount);
  for (int v = 0; v < width_ && amount > tolerance_; ++v) {
    const double part = std::min(amount, flow_[Cell(node, v)]);
    if (part <= tolerance_) continue;
    AddFlow(Cell(node, v), -part);
    TakeForward(v, part);
    amount -= part;
  }
}

// Takes back all flow through `node`.
void IncrementalFlow::Drain(int node) {
  const double through = flow_[NodeCell(node)];
  if (through > tolerance_) {
    value_ -= through;
    for (int u = 0; u < width_; ++u) {
      const double in = flow_[Cell(u, node)];
      if (in <= 0) continue;
      AddFlow(Cell(u, node), -in);
      TakeBack(u, in);
    }
    for (int v = 0; v < width_; ++v) {
      const double out = flow_[Cell(node, v)];
      if (out <= 0) continue;
      AddFlow(Cell(node, v), -out);
      TakeForward(v, out);
    }
  }
  AddFlow(NodeCell(node), -flow_[NodeCell(node)]);
}

void IncrementalFlow::UpdateEdge(int from, int to, bool valid) {
  const int cell = Cell(from, to);
  const double capacity = valid ? problem_.Link(from, to) : 0;
  if (capacity_[cell] == capacity) return;
  capacity_[cell] = capacity;
  SetFlow(cell, valid ? flow_[cell] : 0);
}

// REQUIRES: the node carries nothing.
void IncrementalFlow::SetRange(int node, LayerRange range) {
  placement_[node] = range;
  const bool used = range.size() > 0;
  const int coordinator = width_ - 1;
  const bool partial = problem_.partial_inference;
  capacity_[NodeCell(node)] = used ? problem_.nodes[node].TokensPerS(range.size()) : 0;
  UpdateEdge(coordinator, node, used && range.begin == 0);
  UpdateEdge(node, coordinator, used && range.end == problem_.num_layers);
  for (int j = 0; j < coordinator; ++j) {
    if (j == node) continue;
    const bool both = used && placement_[j].size() > 0;
    UpdateEdge(node, j, both && CanFollow(range, placement_[j], partial));
    UpdateEdge(j, node, both && CanFollow(placement_[j], range, partial));
  }
}

double IncrementalFlow::Apply(std::span<const NodeMove> moves, double enough) {
  log_.clear();
  undo_moves_.clear();
  undo_value_ = value_;
  for (const NodeMove& move : moves) {
    Drain(move.node);
    undo_moves_.push_back({move.node, placement_[move.node]});
  }
  drained_mark_ = log_.size();
  for (const NodeMove& move : moves) SetRange(move.node, move.range);
  Augment(enough);
  return value_;
}

void IncrementalFlow::Rewind(size_t mark) {
  while (log_.size() > mark) {
    SetFlow(log_.back().cell, log_.back().before);
    log_.pop_back();
  }
}

void IncrementalFlow::Undo() {
  Rewind(drained_mark_);
  for (const NodeMove& move : undo_moves_) SetRange(move.node, move.range);
  Rewind(0);
  undo_moves_.clear();
  value_ = undo_value_;
}

void IncrementalFlow::Augment(double enough) {
  while (value_ < enough - tolerance_ && FindPath()) {
    const double amount = AlongPath(kTokenRateMax, false);
    AlongPath(amount, true);
    value_ += amount;
  }
}

// Finds a shortest augmenting path and leaves it in the parents. In the queue, an exit is its
// node's number plus width_.
bool IncrementalFlow::FindPath() {
  const int coordinator = width_ - 1;
  std::fill(entry_seen_.begin(), entry_seen_.end(), Word{0});
  std::fill(exit_seen_.begin(), exit_seen_.end(), Word{0});
  exit_seen_[coordinator / kWordBits] |= Word{1} << (coordinator % kWordBits);
  queue_.assign(1, coordinator + width_);
  for (size_t head = 0; head < queue_.size(); ++head) {
    if (queue_[head] >= width_) {
      ScanExit(queue_[head] - width_);
      if (entry_seen_[coordinator / kWordBits] >> (coordinator % kWordBits) & 1) return true;
    } else {
      ScanEntry(queue_[head]);
    }
  }
  return false;
}

// From a node's exit: over links with residual capacity, and back through the node.
void IncrementalFlow::ScanExit(int node) {
  for (int w = 0; w < words_; ++w) {
    Word fresh = Row(open_, node)[w] & ~entry_seen_[w];
    entry_seen_[w] |= fresh;
    for (; fresh != 0; fresh &= fresh - 1) {
      const int v = w * kWordBits + std::countr_zero(fresh);
      entry_parent_[v] = node;
      queue_.push_back(v);
    }
  }
  const Word bit = Word{1} << (node % kWordBits);
  if (node != width_ - 1 && !(entry_seen_[node / kWordBits] & bit) &&
      flow_[NodeCell(node)] > tolerance_) {
    entry_seen_[node / kWordBits] |= bit;
    entry_parent_[node] = node;
    queue_.push_back(node);
  }
}

// From a node's entry: through the node, and back over links that carry flow into it.
bool IncrementalFlow::ScanEntry(int node) {
  const Word bit = Word{1} << (node % kWordBits);
  const int own = NodeCell(node);
  if (!(exit_seen_[node / kWordBits] & bit) && capacity_[own] - flow_[own] > tolerance_) {
    exit_seen_[node / kWordBits] |= bit;
    exit_parent_[node] = node;
    queue_.push_back(node + width_);
  }
  for (int w = 0; w < words_; ++w) {
    Word fresh = Row(carry_, node)[w] & ~exit_seen_[w];
    exit_seen_[w] |= fresh;
    for (; fresh != 0; fresh &= fresh - 1) {
      const int u = w * kWordBits + std::countr_zero(fresh);
      exit_parent_[u] = node;
      queue_.push_back(u + width_);
    }
  }
  return true;
}

// Walks the path from the sink to the source. Finds its least residual capacity, or adds `amount`
// to its flow.
double IncrementalFlow::AlongPath(double amount, bool apply) {
  const int coordinator = width_ - 1;
  double least = amount;
  bool at_entry = true;
  for (int v = coordinator; at_entry || v != coordinator;) {
    const int u = at_entry ? entry_parent_[v] : exit_parent_[v];
    // u == v: the node's own edge, forwards when it ends at the exit.
    const int cell = u == v ? NodeCell(v) : at_entry ? Cell(u, v) : Cell(v, u);
    const bool forwards = u == v ? !at_entry : at_entry;
    if (apply) {
      AddFlow(cell, forwards ? amount : -amount);
    } else {
      least = std::min(least, forwards ? capacity_[cell] - flow_[cell] : flow_[cell]);
    }
    at_entry = !at_entry;
    v = u;
  }
  return least;
}

}  // namespace millrace::plan
