// EdgeScheduler: chooses the next of the edges that leave one stage. Interleaved weighted round
// robin on the planned flow (Helix, ASPLOS'25, section 5), or one of the baselines it is compared
// with. Owned by the router, one per stage; one thread.
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
  kRandom,         // any edge that is open, all alike
  kShortestQueue,  // to the stage with the least work ahead of it
};

Result<RoutingPolicy> ParseRoutingPolicy(std::string_view name);  // "flow", "random", ...
std::string_view RoutingPolicyName(RoutingPolicy policy);

class EdgeScheduler {
 public:
  explicit EdgeScheduler(std::vector<double> weights);

  // The open edge with the least load after `work` more, and charges it. An edge that was closed
  // comes back at the load of those that served meanwhile: what it missed is not owed to it.
  // REQUIRES: some edge is open; open.size() == number of edges.
  int PickByFlow(const std::vector<bool>& open, double work);
  // Adds to the load of an edge what a request did beyond (below: negative) what was charged.
  void Correct(int edge, double work);

  double load(int edge) const { return load_[edge]; }

 private:
  void Rebase();

  std::vector<double> weight_, load_;
  std::vector<bool> was_closed_;
  double served_to_ = 0;  // the load before the last pick: where everybody open stands
};

}  // namespace millrace::cluster
