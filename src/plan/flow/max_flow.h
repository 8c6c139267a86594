// FlowNetwork: maximum flow on a directed graph with real capacities by preflow-push (Goldberg and
// Tarjan: highest label first, with the gap and global relabelling heuristics), as in Helix,
// section 4.2. Owned by its creator; one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::plan {

class FlowNetwork {
 public:
  explicit FlowNetwork(int num_vertices);

  // REQUIRES: both vertices exist, capacity is finite and >= 0. Returns the edge's number.
  int AddEdge(int from, int to, double capacity);

  // Returns the value of a maximum flow; EdgeFlow() and SourceSide() then describe it. Once per
  // network. REQUIRES: source != sink.
  double Solve(int source, int sink);

  double EdgeFlow(int edge) const { return capacity_[edge] - arcs_[2 * edge].residual; }
  // Whether `vertex` is on the source's side of a minimum cut. Call after Solve().
  bool SourceSide(int vertex) const { return source_side_[vertex]; }

 private:
  struct Arc {  // arc a's reverse is a ^ 1
    int to;
    double residual;
  };

  void IndexArcs();
  void GlobalRelabel();
  void LabelBackwards(int root, int root_height);
  void Discharge(int vertex);
  void Relabel(int vertex);
  void CloseGap(int height);
  void Activate(int vertex);
  void MarkSourceSide();

  int num_vertices_;
  int source_ = 0, sink_ = 0;
  double tolerance_ = 0;
  std::vector<Arc> arcs_;
  std::vector<double> capacity_;  // by edge
  std::vector<int> tail_;         // by edge
  std::vector<int> first_, out_;  // arcs leaving v: out_[first_[v]] .. out_[first_[v + 1]]
  std::vector<double> excess_;
  std::vector<int> height_, current_, height_count_, queue_;
  std::vector<std::vector<int>> active_;  // by height
  int highest_active_ = 0;
  int64_t work_ = 0;  // arcs scanned since the last global relabelling
  std::vector<bool> source_side_;
};

}  // namespace millrace::plan
