#include "plan/flow/search_moves.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::plan {

MoveMaker::MoveMaker(const FlowProblem& problem, Rng& rng) : problem_(problem), rng_(rng) {
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() > 0) usable_.push_back(i);
  }
  MR_CHECK(!usable_.empty());
}

// The nearest existing range of at most `size` layers.
LayerRange MoveMaker::Clamp(int node, int begin, int size) const {
  const int k = std::clamp(size, 1, problem_.nodes[node].max_layers());
  const int b = std::clamp(begin, 0, problem_.num_layers - k);
  return {b, b + k};
}

void MoveMaker::Propose(int node, LayerRange range, const Placement& placement) {
  if (range != placement[node]) moves_.push_back({node, range});
}

LayerRange MoveMaker::AnyRange(int node) {
  const int k = static_cast<int>(rng_.Between(1, problem_.nodes[node].max_layers()));
  const int begin = static_cast<int>(rng_.Between(0, problem_.num_layers - k));
  return {begin, begin + k};
}

// Moves a node anywhere, most often over a layer that lacks rate.
void MoveMaker::Reposition(const Placement& placement, const LayerCover& cover) {
  const int node = AnyNode();
  const LayerRange range = AnyRange(node);
  int layer = static_cast<int>(rng_.Between(0, problem_.num_layers - 1));
  for (int step = 0; step < problem_.num_layers && cover.rate(layer) >= cover.target(); ++step) {
    layer = layer + 1 == problem_.num_layers ? 0 : layer + 1;
  }
  const int offset = static_cast<int>(rng_.Between(0, range.size() - 1));
  Propose(node, Clamp(node, layer - offset, range.size()), placement);
}

// Moves one end, or both, by one layer.
void MoveMaker::Nudge(const Placement& placement) {
  const int node = AnyNode();
  const LayerRange range = placement[node];
  if (range.size() == 0) return;
  const int by = rng_.Between(0, 1) ? 1 : -1;
  LayerRange next = range;
  const int which = static_cast<int>(rng_.Between(0, 2));
  if (which != 0) next.begin += by;
  if (which != 1) next.end += by;
  if (next.begin < 0 || next.end > problem_.num_layers || next.size() < 1 ||
      next.size() > problem_.nodes[node].max_layers()) {
    return;
  }
  Propose(node, next, placement);
}

void MoveMaker::Swap(const Placement& placement) {
  const int a = AnyNode(), b = AnyNode();
  if (a == b || placement[a].size() == 0 || placement[b].size() == 0) return;
  const bool keep_sizes = rng_.Between(0, 1) == 1;
  const int size_a = keep_sizes ? placement[a].size() : placement[b].size();
  const int size_b = keep_sizes ? placement[b].size() : placement[a].size();
  Propose(a, Clamp(a, placement[b].begin, size_a), placement);
  Propose(b, Clamp(b, placement[a].begin, size_b), placement);
}

// Moves a node beside, before or after another, so that their ranges adjoin.
void MoveMaker::Attach(const Placement& placement) {
  const int node = AnyNode(), other = AnyNode();
  if (node == other || placement[other].size() == 0) return;
  const LayerRange at = placement[other];
  const int k = static_cast<int>(rng_.Between(1, problem_.nodes[node].max_layers()));
  switch (rng_.Between(0, 2)) {
    case 0:
      if (at.size() <= problem_.nodes[node].max_layers()) Propose(node, at, placement);
      break;
    case 1:
      if (at.end + k <= problem_.num_layers) Propose(node, {at.end, at.end + k}, placement);
      break;
    default:
      if (at.begin - k >= 0) Propose(node, {at.begin - k, at.begin}, placement);
  }
}

// Moves all ends and beginnings at one layer boundary by one layer.
void MoveMaker::ShiftBoundary(const Placement& placement) {
  const LayerRange at = placement[AnyNode()];
  if (at.size() == 0 || at.end == problem_.num_layers) return;
  const int by = rng_.Between(0, 1) ? 1 : -1;
  for (int i : usable_) {
    LayerRange next = placement[i];
    if (next.size() == 0) continue;
    if (next.begin == at.end) next.begin += by;
    if (next.end == at.end) next.end += by;
    if (next == placement[i]) continue;
    if (next.size() < 1 || next.size() > problem_.nodes[i].max_layers()) {
      moves_.clear();
      return;
    }
    moves_.push_back({i, next});
  }
}

// Splits one node's range between it and another node.
void MoveMaker::Split(const Placement& placement) {
  const int a = AnyNode(), b = AnyNode();
  const LayerRange range = placement[a];
  if (a == b || range.size() < 2) return;
  const int middle = static_cast<int>(rng_.Between(range.begin + 1, range.end - 1));
  if (range.end - middle > problem_.nodes[b].max_layers()) return;
  Propose(a, {range.begin, middle}, placement);
  Propose(b, {middle, range.end}, placement);
}

void MoveMaker::Remove(const Placement& placement) { Propose(AnyNode(), {}, placement); }

const std::vector<NodeMove>& MoveMaker::Propose(const Placement& placement,
                                                const LayerCover& cover) {
  moves_.clear();
  // Frequencies of the kinds of moves, out of 64.
  const int64_t draw = rng_.Between(0, 63);
  if (draw < 18) {
    Reposition(placement, cover);
  } else if (draw < 32) {
    Nudge(placement);
  } else if (draw < 40) {
    Swap(placement);
  } else if (draw < 52) {
    Attach(placement);
  } else if (draw < 58) {
    ShiftBoundary(placement);
  } else if (draw < 63) {
    Split(placement);
  } else {
    Remove(placement);
  }
  return moves_;
}

}  // namespace millrace::plan
