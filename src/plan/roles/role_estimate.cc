#include "plan/roles/role_estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/roles/pool_latency.h"
#include "plan/roles/role_network.h"

namespace millrace::plan {
namespace {

constexpr int kRateSteps = 24;
// Of the TPOT limit, for the mean of a node that serves requests alone. Its outputs do not wait for
// steps of other routes, but prompts disturb them.
constexpr double kCopiesTpot = 0.75;

// The highest rate up to `high` at which `limit_at` finds nothing that limits; `limit` is what
// limits beyond it.
template <typename LimitAt>
double HighestRate(double high, PoolLimit& limit, const LimitAt& limit_at) {
  PoolLimit found = limit_at(high);
  if (!found.any()) return high;
  double low = 0;
  for (int step = 0; step < kRateSteps; ++step) {
    const double middle = (low + high) / 2;
    const PoolLimit now = limit_at(middle);
    (now.any() ? high : low) = middle;
    if (now.any()) found = now;
  }
  limit = found;
  return low;
}

// The least rate of what is left of the pool after the loss of one losable node.
template <typename RateOf>
double AfterWorstLoss(const RoleProblem& problem, const Placement& pool, const RateOf& rate_of) {
  double least = rate_of(pool);
  for (const int node : problem.goodput->losable) {
    if (pool[static_cast<size_t>(node)].size() == 0) continue;
    Placement left = pool;
    left[static_cast<size_t>(node)] = {};
    least = std::min(least, rate_of(left));
  }
  return least;
}

// Whether every request is served by one node.
bool OnlyCopies(const GoodputProblem& problem, const Placement& placement,
                const std::vector<FlowEdge>& edges) {
  return std::ranges::all_of(edges, [&](const FlowEdge& edge) {
    return !edge.to || placement[static_cast<size_t>(*edge.to)].size() == problem.flow.num_layers;
  });
}

double PoolMost(const PoolFlow& pool, double tokens) {
  return pool.tokens_per_s > kFlowMin ? pool.tokens_per_s / tokens : 0;
}

}  // namespace

GoodputEstimate EstimateTogether(const RoleProblem& problem, const Placement& placement,
                                 const std::vector<FlowEdge>& edges) {
  const GoodputProblem& p = *problem.goodput;
  if (OnlyCopies(p, placement, edges)) {
    GoodputProblem tight = p;
    tight.ttft_s = problem.both.ttft_s;
    if (tight.tpot_s) *tight.tpot_s *= kCopiesTpot;
    return EstimateAlong(tight, placement, edges);
  }
  GoodputEstimate out = AsGoodput(EstimateRounds(problem.both, placement, edges), p.output_tokens);
  double tokens_per_s = 0;
  for (const FlowEdge& edge : edges) tokens_per_s += edge.from ? 0 : edge.tokens_per_s;
  const double most = tokens_per_s / (p.prompt_tokens + p.output_tokens);
  if (out.requests_per_s <= most) return out;
  out.requests_per_s = most;
  out.decode_tokens_per_s = most * p.output_tokens;
  out.limit = "flow";
  return out;
}

GoodputEstimate EstimateTogether(const RoleProblem& problem, const Placement& placement) {
  const auto whole = [&](const Placement& left) {
    return EstimateTogether(problem, left, SolvePlacementFlow(problem.goodput->flow, left).edges);
  };
  GoodputEstimate worst = whole(placement);
  for (const int node : problem.goodput->losable) {
    if (placement[static_cast<size_t>(node)].size() == 0) continue;
    Placement left = placement;
    left[static_cast<size_t>(node)] = {};
    GoodputEstimate now = whole(left);
    if (now.requests_per_s >= worst.requests_per_s) continue;
    worst = std::move(now);
    worst.limit = LimitAfterLoss(*problem.goodput, node, worst.limit);
  }
  return worst;
}

double PrefillAlone(const RoleProblem& problem, const Placement& pool) {
  return AfterWorstLoss(problem, pool, [&](const Placement& left) {
    const PoolFlow flow = FlowOfPool(*problem.goodput, problem.prefill, left);
    const double most = PoolMost(flow, problem.goodput->prompt_tokens);
    PoolLimit limit;
    if (most <= 0) return 0.0;
    return HighestRate(most, limit, [&](double r) { return PrefillLimit(problem, flow, r); });
  });
}

double DecodeAlone(const RoleProblem& problem, const Placement& pool) {
  return AfterWorstLoss(problem, pool, [&](const Placement& left) {
    const PoolFlow flow = FlowOfPool(*problem.goodput, problem.decode, left);
    const double most = PoolMost(flow, problem.goodput->output_tokens);
    PoolLimit limit;
    if (most <= 0) return 0.0;
    return HighestRate(most, limit, [&](double r) { return DecodeLimit(problem, flow, r, 0); });
  });
}

RoleUnit EstimateUnit(const RoleProblem& problem, const Placement& prefill,
                      const Placement& decode) {
  const GoodputProblem& p = *problem.goodput;
  RoleUnit unit{.prefill = FlowOfPool(p, problem.prefill, prefill),
                .decode = FlowOfPool(p, problem.decode, decode)};
  const double most =
      std::min(PoolMost(unit.prefill, p.prompt_tokens), PoolMost(unit.decode, p.output_tokens));
  if (most <= 0) {
    unit.estimate.limit = "nothing flows";
    return unit;
  }
  const RoleNetwork network(problem, unit.prefill, prefill, unit.decode, decode);
  unit.hand_overs = network.hand_overs();
  unit.capacity_requests_per_s = std::min(most, network.most());
  GoodputEstimate& e = unit.estimate;
  e.limit = network.most() < most                             ? network.limit()
            : PoolMost(unit.prefill, p.prompt_tokens) <= most ? "the prefill flow"
                                                              : "the decode flow";
  PoolLimit limit;
  e.requests_per_s = HighestRate(unit.capacity_requests_per_s, limit, [&](double rate) {
    const PoolLimit found = PrefillLimit(problem, unit.prefill, rate);
    return found.any() ? found : DecodeLimit(problem, unit.decode, rate, network.KvSeconds(rate));
  });
  if (limit.any()) e.limit = limit.Text(problem);
  const double kv_s = network.KvSeconds(e.requests_per_s);
  e.ttft_s = PrefillAt(problem, unit.prefill, e.requests_per_s).mean_s;
  e.tpot_s = DecodeAt(problem, unit.decode, e.requests_per_s).mean_s +
             kv_s / std::max(1.0, p.output_tokens - 1);
  e.residence_s = e.ttft_s + p.output_tokens * e.tpot_s;
  e.decode_tokens_per_s = e.requests_per_s * p.output_tokens;
  return unit;
}

namespace {

RolePlacement WithoutNode(const RolePlacement& placement, int node) {
  RolePlacement left = placement;
  left.layers[static_cast<size_t>(node)] = {};
  return left;
}

RoleEstimate EstimateWithoutLoss(const RoleProblem& problem, const RolePlacement& placement) {
  RoleEstimate out;
  double highest = 0;
  const auto take = [&](RoleUnit unit) {
    const double rate = unit.estimate.requests_per_s;
    if (rate <= 0) return;
    out.requests_per_s += rate;
    if (rate > highest) out.limit = unit.estimate.limit;
    highest = std::max(highest, rate);
    out.units.push_back(std::move(unit));
  };
  for (int domain = 0; domain < problem.num_domains; ++domain) {
    const Placement prefill = PoolOf(problem, placement, StageRole::kPrefill, domain);
    const Placement decode = PoolOf(problem, placement, StageRole::kDecode, domain);
    take(EstimateUnit(problem, prefill, decode));
  }
  Placement both(placement.layers.size());
  for (size_t i = 0; i < both.size(); ++i) {
    if (placement.roles[i] == StageRole::kBoth) both[i] = placement.layers[i];
  }
  const GoodputProblem& p = *problem.goodput;
  RoleUnit unit{.decode = FlowOfPool(p, p.flow, both)};
  if (unit.decode.tokens_per_s > 0) {
    unit.estimate = EstimateTogether(problem, both, unit.decode.edges);
    unit.capacity_requests_per_s = unit.decode.tokens_per_s / (p.prompt_tokens + p.output_tokens);
    take(std::move(unit));
  }
  return out;
}

}  // namespace

std::string LimitAfterLoss(const GoodputProblem& problem, int node, const std::string& limit) {
  return fmt::format("{} after the loss of {}", limit.empty() ? "nothing left" : limit,
                     problem.flow.nodes[static_cast<size_t>(node)].name);
}

GoodputEstimate SummaryOf(const RoleEstimate& roles) {
  GoodputEstimate out;
  double most = 0;
  for (const RoleUnit& unit : roles.units) {
    if (unit.estimate.requests_per_s <= most) continue;
    most = unit.estimate.requests_per_s;
    out = unit.estimate;
  }
  out.requests_per_s = roles.requests_per_s;
  out.limit = roles.limit;
  return out;
}

RoleEstimate EstimateRoles(const RoleProblem& problem, const RolePlacement& placement) {
  RoleEstimate whole = EstimateWithoutLoss(problem, placement);
  for (const int node : problem.goodput->losable) {
    if (placement.layers[static_cast<size_t>(node)].size() == 0) continue;
    const RoleEstimate left = EstimateWithoutLoss(problem, WithoutNode(placement, node));
    if (left.requests_per_s >= whole.requests_per_s) continue;
    whole.requests_per_s = left.requests_per_s;
    whole.limit = LimitAfterLoss(*problem.goodput, node, left.limit);
  }
  return whole;
}

}  // namespace millrace::plan
