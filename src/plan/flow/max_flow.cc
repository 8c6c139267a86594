#include "plan/flow/max_flow.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::plan {
namespace {

constexpr double kResidualTolerance = 1e-13;  // relative to the largest capacity: rounding residue
constexpr int kRelabelWorkPerSize = 4;  // scans per arc and vertex between global relabellings

}  // namespace

FlowNetwork::FlowNetwork(int num_vertices) : num_vertices_(num_vertices) {}

int FlowNetwork::AddEdge(int from, int to, double capacity) {
  MR_CHECK(from >= 0 && from < num_vertices_ && to >= 0 && to < num_vertices_);
  MR_CHECK(std::isfinite(capacity) && capacity >= 0) << capacity;
  arcs_.push_back({to, capacity});
  arcs_.push_back({from, 0});
  capacity_.push_back(capacity);
  tail_.push_back(from);
  return static_cast<int>(capacity_.size()) - 1;
}

void FlowNetwork::IndexArcs() {
  first_.assign(num_vertices_ + 1, 0);
  for (size_t a = 0; a < arcs_.size(); ++a) ++first_[arcs_[a ^ 1].to + 1];
  for (int v = 0; v < num_vertices_; ++v) first_[v + 1] += first_[v];
  out_.resize(arcs_.size());
  std::vector<int> next(first_.begin(), first_.end() - 1);
  for (size_t a = 0; a < arcs_.size(); ++a) out_[next[arcs_[a ^ 1].to]++] = static_cast<int>(a);
}

void FlowNetwork::Activate(int vertex) {
  if (vertex == source_ || vertex == sink_ || height_[vertex] >= 2 * num_vertices_) return;
  active_[height_[vertex]].push_back(vertex);
  highest_active_ = std::max(highest_active_, height_[vertex]);
}

void FlowNetwork::LabelBackwards(int root, int root_height) {
  height_[root] = root_height;
  queue_.assign(1, root);
  for (size_t head = 0; head < queue_.size(); ++head) {
    const int v = queue_[head];
    for (int i = first_[v]; i < first_[v + 1]; ++i) {
      const int u = arcs_[out_[i]].to;
      if (height_[u] < 2 * num_vertices_ || arcs_[out_[i] ^ 1].residual <= tolerance_) continue;
      if (u == source_) continue;
      height_[u] = height_[v] + 1;
      queue_.push_back(u);
    }
  }
}

// Recomputes heights as exact distances: to the sink, or else back to the source.
void FlowNetwork::GlobalRelabel() {
  height_.assign(num_vertices_, 2 * num_vertices_);
  LabelBackwards(sink_, 0);
  LabelBackwards(source_, num_vertices_);
  height_count_.assign(2 * num_vertices_ + 1, 0);
  for (auto& bucket : active_) bucket.clear();
  highest_active_ = 0;
  for (int v = 0; v < num_vertices_; ++v) {
    ++height_count_[height_[v]];
    current_[v] = first_[v];
    if (excess_[v] > tolerance_) Activate(v);
  }
  work_ = 0;
}

// No vertex is left at `height`, so no vertex above it can reach the sink any more.
void FlowNetwork::CloseGap(int height) {
  for (int v = 0; v < num_vertices_; ++v) {
    if (height_[v] <= height || height_[v] >= num_vertices_) continue;
    --height_count_[height_[v]];
    height_[v] = num_vertices_ + 1;
    ++height_count_[height_[v]];
    current_[v] = first_[v];
    if (excess_[v] > tolerance_) Activate(v);
  }
}

void FlowNetwork::Relabel(int vertex) {
  const int old = height_[vertex];
  int lowest = 2 * num_vertices_;
  for (int i = first_[vertex]; i < first_[vertex + 1]; ++i) {
    if (arcs_[out_[i]].residual > tolerance_) {
      lowest = std::min(lowest, height_[arcs_[out_[i]].to] + 1);
    }
  }
  work_ += first_[vertex + 1] - first_[vertex];
  --height_count_[old];
  height_[vertex] = std::min(lowest, 2 * num_vertices_);
  ++height_count_[height_[vertex]];
  current_[vertex] = first_[vertex];
  if (height_count_[old] == 0 && old < num_vertices_) CloseGap(old);
}

void FlowNetwork::Discharge(int vertex) {
  while (excess_[vertex] > tolerance_ && height_[vertex] < 2 * num_vertices_) {
    if (current_[vertex] == first_[vertex + 1]) {
      Relabel(vertex);
      continue;
    }
    const int a = out_[current_[vertex]];
    Arc& arc = arcs_[a];
    if (arc.residual <= tolerance_ || height_[vertex] != height_[arc.to] + 1) {
      ++current_[vertex];
      ++work_;
      continue;
    }
    const double amount = std::min(excess_[vertex], arc.residual);
    const bool was_idle = excess_[arc.to] <= tolerance_;
    arc.residual -= amount;
    arcs_[a ^ 1].residual += amount;
    excess_[vertex] -= amount;
    excess_[arc.to] += amount;
    if (was_idle && excess_[arc.to] > tolerance_) Activate(arc.to);
  }
}

double FlowNetwork::Solve(int source, int sink) {
  MR_CHECK(source != sink);
  source_ = source;
  sink_ = sink;
  double largest = 0;
  for (double c : capacity_) largest = std::max(largest, c);
  tolerance_ = largest * kResidualTolerance;
  IndexArcs();
  excess_.assign(num_vertices_, 0);
  current_.assign(num_vertices_, 0);
  active_.assign(2 * num_vertices_ + 1, {});
  for (int i = first_[source]; i < first_[source + 1]; ++i) {
    const int a = out_[i];
    const double amount = arcs_[a].residual;
    arcs_[a].residual = 0;
    arcs_[a ^ 1].residual += amount;
    excess_[arcs_[a].to] += amount;
  }
  GlobalRelabel();
  const int64_t relabel_after =
      kRelabelWorkPerSize * (static_cast<int64_t>(arcs_.size()) + num_vertices_);
  while (highest_active_ >= 0) {
    auto& bucket = active_[highest_active_];
    if (bucket.empty()) {
      --highest_active_;
      continue;
    }
    const int v = bucket.back();
    bucket.pop_back();
    // A vertex is in several buckets if it rose while waiting; only the current one counts.
    if (height_[v] != highest_active_ || excess_[v] <= tolerance_) continue;
    Discharge(v);
    if (work_ > relabel_after) GlobalRelabel();
  }
  MarkSourceSide();
  return excess_[sink];
}

void FlowNetwork::MarkSourceSide() {
  source_side_.assign(num_vertices_, false);
  source_side_[source_] = true;
  queue_.assign(1, source_);
  for (size_t head = 0; head < queue_.size(); ++head) {
    for (int i = first_[queue_[head]]; i < first_[queue_[head] + 1]; ++i) {
      const Arc& arc = arcs_[out_[i]];
      if (source_side_[arc.to] || arc.residual <= tolerance_) continue;
      source_side_[arc.to] = true;
      queue_.push_back(arc.to);
    }
  }
}

}  // namespace millrace::plan
