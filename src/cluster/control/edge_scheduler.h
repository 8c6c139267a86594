// EdgeScheduler: chooses which of the edges that leave a stage the next request takes: by
// interleaved weighted round robin on the planned flow (Helix, ASPLOS'25, section 5). The baselines
// of RoutingPolicy are for comparison. Owned by the router, one per stage; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/status.h"

namespace millrace::cluster {

enum class RoutingPolicy {
  kFlow,           // interleaved weighted round robin on the plan's flow
  kRandom,         // any open edge, with equal probability
  kShortestQueue,  // the edge to the stage with the least work queued
};

Result<RoutingPolicy> ParseRoutingPolicy(std::string_view name);  // "flow", "random", ...
std::string_view RoutingPolicyName(RoutingPolicy policy);

class EdgeScheduler {
 public:
  explicit EdgeScheduler(std::vector<double> weights);

  // Returns the open edge with the least load after adding `work`, and charges it. An edge that
  // reopens starts at the load of the open edges: it does not catch up on the work it missed.
  // REQUIRES: some edge is open; open.size() == number of edges.
  int PickByFlow(const std::vector<bool>& open, double work);
  // Adds to the load of an edge the difference between a request's actual and charged work.
  void Correct(int edge, double work);

  double load(int edge) const { return load_[edge]; }

 private:
  void Rebase();

  std::vector<double> weight_, load_;
  std::vector<bool> was_closed_;
  double served_to_ = 0;  // greatest load of a picked edge before its pick
};

}  // namespace millrace::cluster
