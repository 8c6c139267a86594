// EdgeScheduler: chooses which of the edges that leave a stage the next request takes, by
// interleaved weighted round robin on the planned flow (Helix, ASPLOS'25, section 5). Owned by the
// router, one per stage; one thread.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::cluster {

class EdgeScheduler {
 public:
  // REQUIRES: the weights are positive.
  explicit EdgeScheduler(std::vector<double> weights);

  // The open edge with the least load in relation to its weight; among equals, the one with the
  // most weight. The work of the next request does not matter, so that long and short requests are
  // shared alike. An edge that reopens starts at the load of the open edges: it does not catch up
  // on the work it missed. Charges nothing. REQUIRES: some edge is open; open.size() == number of
  // edges.
  int Choose(const std::vector<bool>& open);
  // The edge gets a request with this work.
  void Charge(int edge, double work);
  // Adds to the load of an edge the difference between a request's actual and charged work.
  void Correct(int edge, double work);

  double load(int edge) const { return load_[static_cast<size_t>(edge)]; }

 private:
  void Rebase();

  std::vector<double> weight_, load_;  // load: work / weight
  std::vector<bool> was_closed_;
  double served_to_ = 0;  // greatest load of a charged edge before its charge
};

}  // namespace millrace::cluster
