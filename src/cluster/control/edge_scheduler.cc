#include "cluster/control/edge_scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::cluster {
namespace {

constexpr double kRebaseAt = 1e6;  // keeps the doubles small enough to count single tokens

struct Named {
  RoutingPolicy policy;
  std::string_view name;
};
constexpr Named kPolicies[] = {{RoutingPolicy::kFlow, "flow"},
                               {RoutingPolicy::kRandom, "random"},
                               {RoutingPolicy::kShortestQueue, "shortest-queue"}};

}  // namespace

Result<RoutingPolicy> ParseRoutingPolicy(std::string_view name) {
  for (const Named& named : kPolicies) {
    if (named.name == name) return named.policy;
  }
  return InvalidArgument("unknown routing policy \"" + std::string(name) +
                         "\": use flow, random or shortest-queue");
}

std::string_view RoutingPolicyName(RoutingPolicy policy) {
  for (const Named& named : kPolicies) {
    if (named.policy == policy) return named.name;
  }
  return "?";
}

EdgeScheduler::EdgeScheduler(std::vector<double> weights)
    : weight_(std::move(weights)), load_(weight_.size(), 0), was_closed_(weight_.size(), false) {
  for (double w : weight_) MR_CHECK(w > 0) << w;
}

int EdgeScheduler::PickByFlow(const std::vector<bool>& open, double work) {
  int best = -1;
  double best_load = 0;
  for (size_t e = 0; e < load_.size(); ++e) {
    if (!open[e]) {
      was_closed_[e] = true;
      continue;
    }
    if (was_closed_[e]) {
      load_[e] = std::max(load_[e], served_to_);
      was_closed_[e] = false;
    }
    const double load = load_[e] + work / weight_[e];
    if (best < 0 || load < best_load) {
      best = static_cast<int>(e);
      best_load = load;
    }
  }
  MR_CHECK(best >= 0) << "no edge is open";
  served_to_ = std::max(served_to_, load_[best]);
  load_[best] = best_load;
  if (best_load > kRebaseAt) Rebase();
  return best;
}

void EdgeScheduler::Correct(int edge, double work) { load_[edge] += work / weight_[edge]; }

void EdgeScheduler::Rebase() {
  // Edges that have been closed for long fall below zero. PickByFlow raises their load when they
  // reopen.
  for (double& load : load_) load -= served_to_;
  served_to_ = 0;
}

}  // namespace millrace::cluster
