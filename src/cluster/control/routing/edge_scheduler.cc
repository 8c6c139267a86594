#include "cluster/control/routing/edge_scheduler.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace millrace::cluster {
namespace {

constexpr double kRebaseAt = 1e6;  // keeps the doubles small enough to count single tokens

}  // namespace

EdgeScheduler::EdgeScheduler(std::vector<double> weights)
    : weight_(std::move(weights)), load_(weight_.size(), 0), was_closed_(weight_.size(), false) {
  for (double w : weight_) MR_CHECK(w > 0) << w;
}

int EdgeScheduler::Choose(const std::vector<bool>& open) {
  std::optional<size_t> best;
  for (size_t e = 0; e < load_.size(); ++e) {
    if (!open[e]) {
      was_closed_[e] = true;
      continue;
    }
    if (was_closed_[e]) {
      load_[e] = std::max(load_[e], served_to_);
      was_closed_[e] = false;
    }
    const bool better = !best || load_[e] < load_[*best] ||
                        (load_[e] == load_[*best] && weight_[e] > weight_[*best]);
    if (better) best = e;
  }
  MR_CHECK(best) << "no edge is open";
  return static_cast<int>(*best);
}

void EdgeScheduler::Charge(int edge, double work) {
  double& load = load_[static_cast<size_t>(edge)];
  served_to_ = std::max(served_to_, load);
  load += work / weight_[static_cast<size_t>(edge)];
  if (load > kRebaseAt) Rebase();
}

void EdgeScheduler::Correct(int edge, double work) {
  load_[static_cast<size_t>(edge)] += work / weight_[static_cast<size_t>(edge)];
}

void EdgeScheduler::Rebase() {
  // Edges that have been closed for long fall below zero. Choose raises their load when they
  // reopen.
  for (double& load : load_) load -= served_to_;
  served_to_ = 0;
}

}  // namespace millrace::cluster
