#include "cluster/control/routing/dispatch.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

// The index of the n-th candidate of this rank, from 0.
size_t Nth(std::span<const DispatchLoad> candidates, int rank, size_t n) {
  for (size_t i = 0;; ++i) {
    if (candidates[i].rank == rank && n-- == 0) return i;
  }
}

}  // namespace

size_t Dispatcher::Choose(std::span<const DispatchLoad> candidates) const {
  MR_CHECK(!candidates.empty()) << "no candidate for a request";
  const int rank = std::ranges::min(candidates, {}, &DispatchLoad::rank).rank;
  const auto n = static_cast<size_t>(std::ranges::count(candidates, rank, &DispatchLoad::rank));
  switch (options_.policy) {
    case DispatchPolicy::kRoundRobin: return Nth(candidates, rank, turn_ % n);
    case DispatchPolicy::kRandom:
      return Nth(candidates, rank, HashCounter(options_.seed, turn_) % n);
    case DispatchPolicy::kFewestRequests:
    case DispatchPolicy::kPredictedTime: break;
  }
  const bool by_time = options_.policy == DispatchPolicy::kPredictedTime;
  const auto better = [by_time](const DispatchLoad& a, const DispatchLoad& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (by_time && a.prefill_ahead != b.prefill_ahead) return a.prefill_ahead < b.prefill_ahead;
    return a.requests < b.requests;
  };
  size_t best = options_.ties == DispatchTies::kInTurn ? Nth(candidates, rank, turn_ % n) : 0;
  for (size_t k = 1, first = best; k < candidates.size(); ++k) {
    const size_t i = (first + k) % candidates.size();
    if (better(candidates[i], candidates[best])) best = i;
  }
  return best;
}

}  // namespace millrace::cluster
