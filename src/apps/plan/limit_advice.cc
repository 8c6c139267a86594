#include "apps/plan/limit_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/one_more.h"
#include "cost/device_catalog.h"
#include "plan/cheapest_goodput.h"

namespace millrace::apps {
namespace {

constexpr double kLeastRate = 1e-6;  // requests per second; a lower goodput counts as none

// The lowest mean TPOT at which `candidate` still answers requests, with its TTFT there.
plan::GoodputEstimate AlmostIdleEstimate(plan::GoodputProblem& problem,
                                         const plan::Candidate& candidate) {
  constexpr int kSteps = 30;
  plan::GoodputEstimate least = candidate.estimate;
  double low = 0, high = least.tpot_s;
  for (int step = 0; step < kSteps; ++step) {
    problem.tpot_s = (low + high) / 2;
    const auto estimate = EstimateAlong(problem, candidate.placement, candidate.flow.edges);
    const bool kept = estimate.requests_per_s >= kLeastRate;
    (kept ? high : low) = *problem.tpot_s;
    if (kept) least = estimate;
  }
  return least;
}

// Requests per second of the best plan, by a short search.
double QuickGoodput(const plan::GoodputProblem& problem) {
  const auto ranked = RankPlans(problem, plan::DefaultCheapestOptions().trial, nullptr);
  return ranked.ok() ? ranked->front().estimate.requests_per_s : 0;
}

std::string BindingLimit(const plan::GoodputProblem& problem) {
  if (!problem.ttft_s || !problem.tpot_s) return "";
  plan::GoodputProblem one = problem;
  one.ttft_s = std::nullopt;
  const double without_ttft = QuickGoodput(one);
  one = problem;
  one.tpot_s = std::nullopt;
  const double without_tpot = QuickGoodput(one);
  if (without_ttft < kLeastRate && without_tpot < kLeastRate) {
    return "; each limit alone is missed, too";
  }
  const bool ttft = without_ttft >= without_tpot;
  return fmt::format(
      "; the limit on {} binds: without it {:.3g} requests/s are answered within the "
      "other",
      ttft ? "TTFT" : "TPOT", std::max(without_ttft, without_tpot));
}

// The cluster with one more machine of `device`, linked like the first one.
ClusterSpec WithDevice(const ClusterSpec& cluster, const cost::DeviceSpec& device) {
  ClusterSpec out = WithOneMore(cluster, 0);
  const int added = cluster.coordinator();
  NodeSpec& node = out.nodes.back();
  node.name = "one more";
  node.device = std::string(device.name);
  node.device_count = 1;
  node.memory_bytes = device.memory_bytes;
  node.price_usd_per_hour = device.price_usd_per_hour;
  double fastest = 0;
  for (const LinkSpec& link : cluster.links) fastest = std::max(fastest, link.bytes_per_s);
  if (fastest <= 0) return out;
  out.links.push_back({.from = 0, .to = added, .bytes_per_s = fastest});
  out.links.push_back({.from = added, .to = 0, .bytes_per_s = fastest});
  return out;
}

// The cheapest device of the catalogue of which one more keeps the limits.
std::string WhatToBuy(const PlanInputs& inputs, const plan::GoodputProblem& problem) {
  if (!inputs.goodput_for) return "";
  std::optional<cost::DeviceSpec> best;
  for (const cost::DeviceSpec& device : cost::DeviceCatalog()) {
    if (device.price_usd_per_hour <= 0) continue;  // not for rent
    if (best && best->price_usd_per_hour <= device.price_usd_per_hour) continue;
    auto larger = inputs.goodput_for(WithDevice(inputs.cluster, device));
    if (!larger.ok()) continue;
    larger->ttft_s = problem.ttft_s;
    larger->tpot_s = problem.tpot_s;
    larger->losable = problem.losable;
    const int added = problem.flow.num_nodes();
    if (std::ssize(problem.losable) == added) larger->losable.push_back(added);  // all may be lost
    if (QuickGoodput(*larger) >= kLeastRate) best = device;
  }
  if (!best) return "; no device of the catalogue, added once, would keep them";
  return fmt::format("; one more {} ({:g} USD/h) would keep them", best->name,
                     best->price_usd_per_hour);
}

}  // namespace

Status NoPlanMeetsLimits(const PlanInputs& inputs, const plan::GoodputProblem& problem,
                         const plan::CandidateOptions& search) {
  plan::GoodputProblem unlimited = problem;
  unlimited.ttft_s = unlimited.tpot_s = std::nullopt;
  unlimited.losable.clear();
  MR_ASSIGN_OR_RETURN(const auto free, RankByGoodput(unlimited, search));
  std::optional<plan::GoodputEstimate> fastest;
  for (const plan::Candidate& candidate : free) {
    const auto idle = AlmostIdleEstimate(unlimited, candidate);
    if (!fastest || idle.tpot_s < fastest->tpot_s) fastest = idle;
  }
  return FailedPrecondition(
      fmt::format("no placement found meets the limits{}; the fastest found has a TTFT of {:.3g} s "
                  "and a TPOT of "
                  "{:.3g} ms when almost idle{}{}",
                  problem.losable.empty() ? "" : " after the loss of a node", fastest->ttft_s,
                  1e3 * fastest->tpot_s, BindingLimit(problem), WhatToBuy(inputs, problem)));
}

}  // namespace millrace::apps
