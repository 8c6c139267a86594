// OrderedFlow: a maximum flow by preflow-push that chooses among equal flows like networkx, whose
// flow Helix's simulator uses for routing: highest label first, arcs in the order of adding,
// relabelling again after a graph's worth of work. Where networkx picks any vertex of a level
// (depending on Python's hash seed), it takes the lowest. Planning uses plan/flow/max_flow.h. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace millrace::experiments::helix {

class OrderedFlow {
 public:
  explicit OrderedFlow(int num_vertices);

  // Returns the edge's number. Edges count as added in the order of their tails, and within one
  // tail in the order of these calls. REQUIRES: from != to, no edge between the two yet, capacity >
  // 0.
  int AddEdge(int from, int to, double capacity);

  // The value of the flow. At most once. REQUIRES: source != sink.
  double Solve(int source, int sink);
  double EdgeFlow(int edge) const { return arcs_[static_cast<size_t>(2 * edge)].flow; }

 private:
  struct Arc {  // its reverse is a ^ 1
    int from = 0, to = 0;
    double capacity = 0, flow = 0;
    double room() const { return capacity - flow; }
  };
  struct Vertex {
    std::vector<int> arcs;
    size_t current = 0;  // the next arc to try
    int height = 0;
    double excess = 0;
  };
  struct Level {
    std::set<int> active, idle;  // vertices with and without excess
  };

  void IndexArcs();
  std::vector<int> DistancesTo(int root) const;  // -1: no path
  void Start();
  void Push(int arc, double amount);
  void Move(int vertex, int height);
  int Discharge(int vertex, bool to_sink);
  int Relabel(int vertex);
  int RelabelAll(bool from_sink);
  void CloseGap(int height);
  void PushToSink();
  void ReturnToSource();

  int source_ = 0, sink_ = 0;
  std::vector<Vertex> vertices_;
  std::vector<Arc> arcs_;
  std::vector<Level> levels_;
  int top_ = 0;  // no active vertex below the number of vertices is higher
  int64_t work_ = 0;
};

}  // namespace millrace::experiments::helix
