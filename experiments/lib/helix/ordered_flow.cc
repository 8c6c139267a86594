#include "experiments/lib/helix/ordered_flow.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace millrace::experiments::helix {

OrderedFlow::OrderedFlow(int num_vertices) : vertices_(static_cast<size_t>(num_vertices)) {}

int OrderedFlow::AddEdge(int from, int to, double capacity) {
  MR_CHECK(from != to && capacity > 0);
  arcs_.push_back({from, to, capacity, 0});
  arcs_.push_back({to, from, 0, 0});
  return static_cast<int>(arcs_.size()) / 2 - 1;
}

void OrderedFlow::IndexArcs() {
  std::vector<int> order(arcs_.size() / 2);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return arcs_[static_cast<size_t>(2 * a)].from < arcs_[static_cast<size_t>(2 * b)].from;
  });
  for (int edge : order) {
    const Arc& arc = arcs_[static_cast<size_t>(2 * edge)];
    vertices_[static_cast<size_t>(arc.from)].arcs.push_back(2 * edge);
    vertices_[static_cast<size_t>(arc.to)].arcs.push_back(2 * edge + 1);
  }
}

std::vector<int> OrderedFlow::DistancesTo(int root) const {
  std::vector<int> distance(vertices_.size(), -1), queue = {root};
  distance[static_cast<size_t>(root)] = 0;
  for (size_t i = 0; i < queue.size(); ++i) {
    for (int a : vertices_[static_cast<size_t>(queue[i])].arcs) {
      const Arc& back = arcs_[static_cast<size_t>(a ^ 1)];
      if (distance[static_cast<size_t>(back.from)] >= 0 || back.room() <= 0) continue;
      distance[static_cast<size_t>(back.from)] = distance[static_cast<size_t>(queue[i])] + 1;
      queue.push_back(back.from);
    }
  }
  return distance;
}

void OrderedFlow::Push(int a, double amount) {
  Arc& arc = arcs_[static_cast<size_t>(a)];
  arc.flow += amount;
  arcs_[static_cast<size_t>(a ^ 1)].flow -= amount;
  vertices_[static_cast<size_t>(arc.from)].excess -= amount;
  vertices_[static_cast<size_t>(arc.to)].excess += amount;
}

// Sets the heights to distances and saturates the source's arcs.
void OrderedFlow::Start() {
  const auto n = static_cast<int>(vertices_.size());
  const std::vector<int> distance = DistancesTo(sink_);
  top_ = 0;
  for (int v = 0; v < n; ++v) {
    const int d = distance[static_cast<size_t>(v)];
    vertices_[static_cast<size_t>(v)].height = v == source_ ? n : d >= 0 ? d : n + 1;
    if (v != source_) top_ = std::max(top_, d);
  }
  for (int a : vertices_[static_cast<size_t>(source_)].arcs) {
    const double room = arcs_[static_cast<size_t>(a)].capacity;
    if (room > 0) Push(a, room);
  }
  levels_.resize(2 * vertices_.size());
  for (int v = 0; v < n; ++v) {
    if (v == source_ || v == sink_) continue;
    const Vertex& vertex = vertices_[static_cast<size_t>(v)];
    Level& level = levels_[static_cast<size_t>(vertex.height)];
    (vertex.excess > 0 ? level.active : level.idle).insert(v);
  }
}

void OrderedFlow::Move(int v, int height) {
  Vertex& vertex = vertices_[static_cast<size_t>(v)];
  Level& from = levels_[static_cast<size_t>(vertex.height)];
  Level& to = levels_[static_cast<size_t>(height)];
  vertex.height = height;
  if (from.active.erase(v) > 0) to.active.insert(v);
  if (from.idle.erase(v) > 0) to.idle.insert(v);
}

int OrderedFlow::Relabel(int v) {
  const auto& arcs = vertices_[static_cast<size_t>(v)].arcs;
  work_ += static_cast<int64_t>(arcs.size());
  int least = static_cast<int>(levels_.size());
  for (int a : arcs) {
    const Arc& arc = arcs_[static_cast<size_t>(a)];
    if (arc.room() > 0) least = std::min(least, vertices_[static_cast<size_t>(arc.to)].height);
  }
  MR_CHECK(least + 1 < static_cast<int>(levels_.size())) << "excess without a source";
  return least + 1;
}

// Pushes a vertex's excess on until none is left or, towards the sink, until it is known to belong
// to the source's side. Returns the height at which to continue.
int OrderedFlow::Discharge(int v, bool to_sink) {
  Vertex& vertex = vertices_[static_cast<size_t>(v)];
  int height = vertex.height, next = height;
  levels_[static_cast<size_t>(height)].active.erase(v);
  for (;;) {
    const int a = vertex.arcs[vertex.current];
    const Arc& arc = arcs_[static_cast<size_t>(a)];
    const Vertex& head = vertices_[static_cast<size_t>(arc.to)];
    if (height == head.height + 1 && arc.room() > 0) {
      Push(a, std::min(vertex.excess, arc.room()));
      Level& below = levels_[static_cast<size_t>(head.height)];
      if (below.idle.erase(arc.to) > 0) below.active.insert(arc.to);
      if (vertex.excess == 0) {
        levels_[static_cast<size_t>(height)].idle.insert(v);
        break;
      }
    }
    if (++vertex.current < vertex.arcs.size()) continue;
    vertex.current = 0;
    height = Relabel(v);
    if (to_sink && height + 1 >= static_cast<int>(vertices_.size())) {
      levels_[static_cast<size_t>(height)].active.insert(v);
      break;
    }
    next = height;
  }
  vertex.height = height;
  return next;
}

int OrderedFlow::RelabelAll(bool from_sink) {
  const auto n = static_cast<int>(vertices_.size());
  const std::vector<int> distance = DistancesTo(from_sink ? sink_ : source_);
  int highest = 0;
  for (int v = 0; v < n; ++v) {
    const int d = distance[static_cast<size_t>(v)];
    if (d >= 0 && (from_sink || v != sink_)) highest = std::max(highest, d);
    if (v == source_ || v == sink_) continue;
    if (d >= 0) {
      Move(v, from_sink ? d : n + d);
    } else if (from_sink && vertices_[static_cast<size_t>(v)].height < n) {
      Move(v, n + 1);
    }
  }
  work_ = 0;
  return from_sink ? highest : n + highest;
}

// No vertex is at `height`, so those above it cannot reach the sink.
void OrderedFlow::CloseGap(int height) {
  const auto n = static_cast<int>(vertices_.size());
  for (int h = height + 1; h <= top_; ++h) {
    const Level level = levels_[static_cast<size_t>(h)];
    for (int v : level.active) Move(v, n + 1);
    for (int v : level.idle) Move(v, n + 1);
  }
}

void OrderedFlow::PushToSink() {
  const auto limit = static_cast<int64_t>(vertices_.size() + arcs_.size());
  int height = top_;
  while (height > 0) {
    Level& level = levels_[static_cast<size_t>(height)];
    if (level.active.empty()) {
      --height;
      continue;
    }
    const int before = height;
    height = Discharge(*level.active.begin(), true);
    if (work_ >= limit) {
      top_ = height = RelabelAll(true);
    } else if (level.active.empty() && level.idle.empty()) {
      CloseGap(before);
      top_ = height = before - 1;
    } else {
      top_ = std::max(top_, height);
    }
  }
}

void OrderedFlow::ReturnToSource() {
  const auto n = static_cast<int>(vertices_.size());
  const auto limit = static_cast<int64_t>(vertices_.size() + arcs_.size());
  int height = RelabelAll(false);
  while (height > n) {
    Level& level = levels_[static_cast<size_t>(height)];
    if (level.active.empty()) {
      --height;
      continue;
    }
    height = Discharge(*level.active.begin(), false);
    if (work_ >= limit) height = RelabelAll(false);
  }
}

double OrderedFlow::Solve(int source, int sink) {
  MR_CHECK(source != sink && levels_.empty());
  source_ = source;
  sink_ = sink;
  IndexArcs();
  if (DistancesTo(sink)[static_cast<size_t>(source)] < 0) return 0;
  Start();
  PushToSink();
  ReturnToSource();
  return vertices_[static_cast<size_t>(sink)].excess;
}

}  // namespace millrace::experiments::helix
