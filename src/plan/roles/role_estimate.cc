#include "plan/roles/role_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/roles/role_network.h"

namespace millrace::plan {
namespace {

constexpr double kKvUsable = 0.9;  // usable share of a node's KV memory
constexpr int kRateSteps = 30;
constexpr int kBatchSteps = 12;       // until batches and step times agree
constexpr double kMissed = 0.1;       // share of requests that may miss a limit
constexpr double kNormalTail = 1.28;  // standard deviations beyond which kMissed of a normal lies
constexpr double kSlowest_s = 1e3;    // a token that takes longer never comes

const char kTtft[] = "ttft", kTpot[] = "tpot";

struct Latency {
  double mean_s = 0, tail_s = 0;  // tail: all but kMissed of the requests
  std::string limit;              // empty: all capacities suffice
};

// The mean time of `tokens` tokens of one request on the pool's links, latency included.
double LinkSeconds(const RoleProblem& problem, const PoolFlow& pool, double tokens) {
  double sum = 0;
  for (const FlowEdge& edge : pool.edges) {
    const double rate =
        problem.goodput->flow.Link(RowOf(problem, edge.from), RowOf(problem, edge.to));
    sum += pool.Share(edge) * (HopLatency(problem, edge.from, edge.to) + tokens / rate);
  }
  return sum;
}

// Nine prompts in ten are at most this much longer than the mean, for a lognormal of this spread.
double LongPrompt(double spread) {
  const double variance = std::log(std::max(1.0, spread));
  return std::exp(kNormalTail * std::sqrt(variance) - variance / 2);
}

// Prompts queue at every stage. The wait of the busiest one has an exponential tail.
Latency PrefillAt(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const GoodputProblem& p = *problem.goodput;
  Latency out;
  double service_s = 0, wait_s = 0, extra_s = 0;
  for (const PoolFlow::Stage& stage : pool.stages) {
    const double prompt_s =
        stage.layers * p.prompt_tokens * p.rates[stage.node].prefill_s_per_token;
    const double prompts = rate * stage.share, busy = prompts * prompt_s;
    if (busy > kBusyMax) {
      out.limit = OfNode("prefill of", problem, stage.node);
      return out;
    }
    const double wait = p.prompt_spread * busy * prompt_s / (2 * (1 - busy));
    service_s += stage.share * prompt_s;
    wait_s += stage.share * wait;
    if (busy > kMissed) {
      extra_s = std::max(extra_s, wait / busy * std::log(busy / kMissed) - wait);
    }
  }
  const double links_s = LinkSeconds(problem, pool, p.prompt_tokens);
  out.mean_s = service_s + wait_s + links_s;
  out.tail_s = out.mean_s + std::max(0.0, extra_s) + (LongPrompt(p.prompt_spread) - 1) * service_s;
  return out;
}

// A stage decodes what has come since its last step. A route of several stages has as many steps in
// flight, so a sequence returns to a stage after all of them, or after the slowest if that is
// later.
Latency DecodeAt(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const GoodputProblem& p = *problem.goodput;
  const double links_s = LinkSeconds(problem, pool, 1);
  double stages = 0;
  for (const PoolFlow::Stage& stage : pool.stages) stages += stage.share;
  Latency out;
  double tail_s = 0;
  for (int round = 0; round < kBatchSteps; ++round) {
    double sum = links_s, slowest = 0, tail = links_s, slowest_tail = 0;
    for (const PoolFlow::Stage& stage : pool.stages) {
      const LayerRates& rates = p.rates[stage.node];
      const double running = rate * stage.share * p.output_tokens * out.mean_s;
      const double batch = std::max(1.0, running / stages);
      const double more = kNormalTail * std::sqrt(std::max(running, 0.0)) / stages;
      const double step_s = stage.layers * rates.decode_s_per_step;
      const double each_s = stage.layers * rates.decode_s_per_token;
      const double visit = step_s + batch * each_s, visit_tail = visit + more * each_s;
      sum += stage.share * visit;
      tail += stage.share * visit_tail;
      slowest = std::max(slowest, visit);
      slowest_tail = std::max(slowest_tail, visit_tail);
    }
    out.mean_s = std::max(sum, stages * slowest);
    tail_s = std::max(tail, stages * slowest_tail);
    if (out.mean_s > kSlowest_s) break;
  }
  out.tail_s = tail_s;
  for (const PoolFlow::Stage& stage : pool.stages) {
    const LayerRates& rates = p.rates[stage.node];
    const double tokens = rate * stage.share * p.output_tokens;
    if (tokens * stage.layers * rates.decode_s_per_token > kBusyMax || out.mean_s > kSlowest_s) {
      out.limit = OfNode("decode of", problem, stage.node);
      return out;
    }
    // Little's law: half of the output exists on average.
    const double running = tokens * out.mean_s;
    const double held = (running + kNormalTail * std::sqrt(running)) *
                        (p.prompt_tokens + p.output_tokens / 2) * stage.layers;
    const auto kv =
        static_cast<double>(p.kv_token_layers[stage.node][static_cast<size_t>(stage.layers) - 1]);
    if (held > kKvUsable * kv) {
      out.limit = OfNode("KV of", problem, stage.node);
      return out;
    }
  }
  return out;
}

// The highest rate up to `high` at which `limit_at` finds nothing that limits.
template <typename LimitAt>
double HighestRate(double high, std::string& limit, const LimitAt& limit_at) {
  std::string found = limit_at(high);
  if (found.empty()) return high;
  double low = 0;
  for (int step = 0; step < kRateSteps; ++step) {
    const double middle = (low + high) / 2;
    const std::string now = limit_at(middle);
    (now.empty() ? low : high) = middle;
    if (!now.empty()) found = now;
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

std::string PrefillLimit(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const Latency ttft = PrefillAt(problem, pool, rate);
  if (!ttft.limit.empty()) return ttft.limit;
  const auto limit = problem.goodput->ttft_s;
  return limit && ttft.tail_s > *limit ? kTtft : "";
}

std::string DecodeLimit(const RoleProblem& problem, const PoolFlow& pool, double rate,
                        double kv_s) {
  const Latency tpot = DecodeAt(problem, pool, rate);
  if (!tpot.limit.empty()) return tpot.limit;
  const auto limit = problem.goodput->tpot_s;
  // The KV arrives between the first token and the second.
  const double spread = kv_s / std::max(1.0, problem.goodput->output_tokens - 1);
  return limit && tpot.tail_s + spread > *limit ? kTpot : "";
}

double PoolMost(const PoolFlow& pool, double tokens) {
  return pool.tokens_per_s > kFlowMin ? pool.tokens_per_s / tokens : 0;
}

}  // namespace

PoolFlow FlowOfPool(const FlowProblem& problem, const Placement& pool) {
  const PlacementFlow flow = SolvePlacementFlow(problem, pool);
  PoolFlow out;
  if (flow.tokens_per_s <= kFlowMin) return out;
  out.tokens_per_s = flow.tokens_per_s;
  out.edges = flow.edges;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (flow.node_tokens_per_s[i] <= kFlowMin) continue;
    out.stages.push_back({i, pool[i].size(), flow.node_tokens_per_s[i] / flow.tokens_per_s});
  }
  return out;
}

double PrefillAlone(const RoleProblem& problem, const Placement& pool) {
  return AfterWorstLoss(problem, pool, [&](const Placement& left) {
    const PoolFlow flow = FlowOfPool(problem.prefill, left);
    const double most = PoolMost(flow, problem.goodput->prompt_tokens);
    std::string limit;
    if (most <= 0) return 0.0;
    return HighestRate(most, limit, [&](double r) { return PrefillLimit(problem, flow, r); });
  });
}

double DecodeAlone(const RoleProblem& problem, const Placement& pool) {
  return AfterWorstLoss(problem, pool, [&](const Placement& left) {
    const PoolFlow flow = FlowOfPool(problem.decode, left);
    const double most = PoolMost(flow, problem.goodput->output_tokens);
    std::string limit;
    if (most <= 0) return 0.0;
    return HighestRate(most, limit, [&](double r) { return DecodeLimit(problem, flow, r, 0); });
  });
}

RoleUnit EstimateUnit(const RoleProblem& problem, const Placement& prefill,
                      const Placement& decode) {
  const GoodputProblem& p = *problem.goodput;
  RoleUnit unit{.prefill = FlowOfPool(problem.prefill, prefill),
                .decode = FlowOfPool(problem.decode, decode)};
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
  e.requests_per_s =
      HighestRate(unit.capacity_requests_per_s, e.limit, [&](double rate) -> std::string {
        std::string limit = PrefillLimit(problem, unit.prefill, rate);
        if (!limit.empty()) return limit;
        return DecodeLimit(problem, unit.decode, rate, network.KvSeconds(rate));
      });
  const double kv_s = network.KvSeconds(e.requests_per_s);
  e.ttft_s = PrefillAt(problem, unit.prefill, e.requests_per_s).mean_s;
  e.tpot_s = DecodeAt(problem, unit.decode, e.requests_per_s).mean_s +
             kv_s / std::max(1.0, p.output_tokens - 1);
  e.residence_s = e.ttft_s + p.output_tokens * e.tpot_s;
  e.decode_tokens_per_s = e.requests_per_s * p.output_tokens;
  return unit;
}

namespace {

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
  RoleUnit unit{.decode = FlowOfPool(p.flow, both)};
  if (unit.decode.tokens_per_s > 0) {
    unit.estimate = EstimateAlong(problem.both, both, unit.decode.edges);
    unit.capacity_requests_per_s = unit.decode.tokens_per_s / (p.prompt_tokens + p.output_tokens);
    take(std::move(unit));
  }
  return out;
}

}  // namespace

RolePlacement WithoutNode(const RolePlacement& placement, int node) {
  RolePlacement left = placement;
  left.layers[static_cast<size_t>(node)] = {};
  return left;
}

RoleEstimate EstimateRoles(const RoleProblem& problem, const RolePlacement& placement) {
  RoleEstimate whole = EstimateWithoutLoss(problem, placement);
  for (const int node : problem.goodput->losable) {
    if (placement.layers[static_cast<size_t>(node)].size() == 0) continue;
    const RoleEstimate left = EstimateWithoutLoss(problem, WithoutNode(placement, node));
    if (left.requests_per_s >= whole.requests_per_s) continue;
    whole.requests_per_s = left.requests_per_s;
    whole.limit =
        fmt::format("{} after the loss of {}", left.limit.empty() ? "nothing left" : left.limit,
                    problem.goodput->flow.nodes[node].name);
  }
  return whole;
}

}  // namespace millrace::plan
