#include "plan/estimate/rounds_goodput.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/rng.h"
#include "plan/flow/placement_flow.h"

namespace millrace::plan {
namespace {

constexpr double kKvShare = 0.8;   // usable share of a node's cache
constexpr double kBusiest = 0.95;  // highest utilisation of a node, link, card or trunk
constexpr double kSlowest = 60;    // seconds per round
constexpr double kSpread = 1.6;    // E[S^2] / E[S]^2 of the prompt lengths
constexpr int kBatchRounds = 8;    // iterations until a node's round and its batch agree
constexpr double kRateMax = 1e4;   // requests per second
constexpr int kRateBisections = 34;

// Load per request on the nodes and links that a placement uses.
class Shares {
 public:
  Shares(const RoundsProblem& problem, const Placement& placement,
         const std::vector<FlowEdge>& edges)
      : problem_(problem) {
    std::vector<double> entered(placement.size(), 0), run(placement.size(), 0);
    for (const FlowEdge& edge : edges) total_ += edge.from ? 0 : edge.tokens_per_s;
    for (const FlowEdge& edge : edges) {
      if (!edge.to || !carries()) continue;
      const auto to = static_cast<size_t>(*edge.to);
      const int begin = edge.from ? placement[static_cast<size_t>(*edge.from)].end : 0;
      entered[to] += edge.tokens_per_s / total_;
      run[to] += edge.tokens_per_s / total_ * (placement[to].end - begin);
    }
    for (size_t i = 0; i < placement.size() && carries(); ++i) {
      if (entered[i] * total_ < kFlowMin) continue;
      const RoundsNode& node = problem.nodes[i];
      const double share = entered[i], layers = run[i] / share;
      const double per_request = share * layers * (problem.prompt_tokens + problem.output_tokens);
      const auto kv =
          static_cast<double>(node.kv_token_layers[static_cast<size_t>(placement[i].size()) - 1]);
      if (kKvShare * kv / per_request < in_flight_max_) {
        in_flight_max_ = kKvShare * kv / per_request;
        fullest_ = static_cast<int>(i);
      }
      const double prompt_s =
          layers * node.prompt_s + problem.prompt_tokens * problem.copy_s_per_token;
      const bool last = placement[i].end == problem.flow->num_layers;
      nodes_.push_back(
          {&node, static_cast<int>(i), layers, share, prompt_s, last ? node.head_s : 0});
    }
    for (const FlowEdge& edge : edges) AddLink(edge);
    if (carries()) rate_max_ = std::min({CardsCarry(), TrunksCarry(), SharedLinksCarry()});
  }

  bool carries() const { return total_ > kFlowMin; }
  double in_flight_max() const { return in_flight_max_; }
  const std::string& fullest() const { return problem_.flow->nodes[fullest_].name; }
  // The node that is busiest with prompts and outputs, each output in a step of its own.
  const std::string& Busiest() const {
    const Node* busiest = &nodes_.front();
    const auto load = [&](const Node& node) {
      return node.share * (node.prompt_s + problem_.output_tokens * node.layers *
                                               (node.node->decode_s[1] - node.node->decode_s[0]));
    };
    for (const Node& node : nodes_) {
      if (load(node) > load(*busiest)) busiest = &node;
    }
    return problem_.flow->nodes[busiest->index].name;
  }

  // Seconds of a decode iteration and of a prompt at `rate` requests per second. None: overloaded.
  struct Times {
    double decode_s = 0, prompt_s = 0;
  };
  std::optional<Times> At(double rate) const {
    if (rate > rate_max_) return std::nullopt;
    Times times;
    for (const Node& node : nodes_) {
      const auto stay = StayAt(node, rate);
      if (!stay) return std::nullopt;
      times.decode_s += node.share * stay->decode_s;
      times.prompt_s += node.share * stay->prompt_s;
    }
    for (const Link& link : links_) {
      const double prompts = rate * link.share;
      const double busy = prompts * (link.prompt_s + problem_.output_tokens * link.decode_s);
      if (busy > kBusiest) return std::nullopt;
      const double wait = kSpread * prompts * link.prompt_s * link.prompt_s / (2 * (1 - busy));
      times.decode_s += link.share * (link.latency_s + link.decode_s + wait);
      times.prompt_s += link.share * (link.latency_s + link.prompt_s + wait);
    }
    return times;
  }

 private:
  struct Node {
    const RoundsNode* node;
    int index;
    double layers, share, prompt_s, head_s;  // prompt_s: of all its layers
  };
  struct Link {
    int from, to;
    double share, latency_s, prompt_s, decode_s;
  };

  void AddLink(const FlowEdge& edge) {
    const int n = problem_.flow->num_nodes();
    const int from = edge.from.value_or(n), to = edge.to.value_or(n);
    const auto cell =
        static_cast<size_t>(from) * static_cast<size_t>(n + 1) + static_cast<size_t>(to);
    const double tokens_per_s = problem_.link_tokens_per_s[cell];
    if (tokens_per_s <= 0) return;
    links_.push_back({from, to, edge.tokens_per_s / total_, problem_.link_latency_s[cell],
                      problem_.prompt_tokens / tokens_per_s, 1 / tokens_per_s});
  }

  // Requests per second that `tokens_per_s` carries if `share` of each request's tokens pass.
  double Carries(double tokens_per_s, double share) const {
    const double tokens = share * (problem_.prompt_tokens + problem_.output_tokens);
    return tokens > 0 ? kBusiest * tokens_per_s / tokens : kRateMax;
  }

  double CardsCarry() const {
    double rate = kRateMax;
    for (size_t i = 0; i < problem_.nic_tokens_per_s.size(); ++i) {
      if (problem_.nic_tokens_per_s[i] <= 0) continue;
      double in = 0, out = 0;
      for (const Link& link : links_) {
        const auto node = static_cast<int>(i);
        const int from = MachineOf(problem_.machine, link.from);
        const int to = MachineOf(problem_.machine, link.to);
        if (to == node && from != node) in += link.share;
        if (from == node && to != node) out += link.share;
      }
      rate = std::min(rate, Carries(problem_.nic_tokens_per_s[i], std::max(in, out)));
    }
    return rate;
  }

  double TrunksCarry() const {
    double rate = kRateMax;
    for (const Trunk& trunk : problem_.trunks) {
      double share = 0;
      for (const Link& link : links_) {
        const std::pair<int, int> ends(link.from, link.to);
        if (std::find(trunk.links.begin(), trunk.links.end(), ends) != trunk.links.end()) {
          share += link.share;
        }
      }
      rate = std::min(rate, Carries(trunk.tokens_per_s, share));
    }
    return rate;
  }

  // Links between machines that several parts of them use.
  double SharedLinksCarry() const {
    if (problem_.machine.empty()) return kRateMax;
    std::map<std::pair<int, int>, std::pair<double, double>> shared;  // tokens per second, share
    for (const Link& link : links_) {
      const std::pair<int, int> ends(MachineOf(problem_.machine, link.from),
                                     MachineOf(problem_.machine, link.to));
      if (ends.first == ends.second) continue;
      auto& [tokens_per_s, share] = shared[ends];
      tokens_per_s = 1 / link.decode_s;
      share += link.share;
    }
    double rate = kRateMax;
    for (const auto& [ends, load] : shared) rate = std::min(rate, Carries(load.first, load.second));
    return rate;
  }

  // A round runs every layer once for what arrived during the previous round. Few rounds contain a
  // prompt or a part of one, and those are long. A random arrival meets a long round more often
  // than a short one, waits until it ends, and then runs with everything that arrived meanwhile.
  std::optional<Times> StayAt(const Node& node, double rate) const {
    const std::vector<double>& decode_s = node.node->decode_s;
    const double batch_max = static_cast<double>(decode_s.size()) - 1;
    const double prompts = rate * node.share;
    const double decodes = prompts * problem_.output_tokens;
    const double load = prompts * node.prompt_s;
    if (load >= kBusiest) return std::nullopt;
    double mean = 0, plain = 0;
    for (int i = 0; i < kBatchRounds; ++i) {
      const double batch = std::clamp(decodes * mean, std::min(2.0, batch_max), batch_max);
      plain = node.head_s + node.layers * decode_s[static_cast<size_t>(batch)];
      mean = plain + prompts * mean * node.prompt_s;
      if (mean > kSlowest) return std::nullopt;
    }
    const double steps = problem_.prompt_steps, p = node.prompt_s / steps;
    const double with_prompt = std::min(1.0, steps * prompts * mean);
    const double square = plain * plain + with_prompt * (2 * plain * p + kSpread * p * p);
    const double met = square / (plain + with_prompt * p);
    const double behind = met / 2 + prompts * met * node.prompt_s;
    return Times{behind + plain, behind + steps * plain + node.prompt_s};
  }

  const RoundsProblem& problem_;
  std::vector<Node> nodes_;
  std::vector<Link> links_;
  double total_ = 0;  // tokens per second that enter
  double in_flight_max_ = 1e18, rate_max_ = kRateMax;
  int fullest_ = 0;  // node with the least room for requests
};

// One proposal: a node's range moves, grows, shrinks, or becomes a copy of another node's.
void Propose(const FlowProblem& problem, Rng* rng, Placement* placement) {
  const int n = problem.num_nodes(), num_layers = problem.num_layers;
  const auto i = static_cast<size_t>(rng->Between(0, n - 1));
  const auto j = static_cast<size_t>(rng->Between(0, n - 1));
  LayerRange& a = (*placement)[i];
  LayerRange& b = (*placement)[j];
  const auto fits = [&](size_t node, LayerRange r) {
    return r.begin >= 0 && r.end <= num_layers && r.size() >= 1 &&
           r.size() <= problem.nodes[node].max_layers();
  };
  const auto set = [&](size_t node, LayerRange r) {
    if (fits(node, r)) (*placement)[node] = r;
  };
  const int d = rng->Between(0, 1) == 0 ? -1 : 1;
  switch (rng->Between(0, 5)) {
    case 0: return set(i, {a.begin + d, a.end});
    case 1: return set(i, {a.begin, a.end + d});
    case 2: return set(i, {a.begin + d, a.end + d});
    case 3: return set(i, b);
    case 4:
      if (fits(i, b) && fits(j, a)) std::swap(a, b);
      return;
    default: {
      // The boundary between the ranges that end and those that begin where `i` ends.
      const int at = a.end;
      for (size_t k = 0; k < placement->size(); ++k) {
        const LayerRange r = (*placement)[k];
        if (r.end == at) set(k, {r.begin, r.end + d});
        if (r.begin == at && at > 0) set(k, {r.begin + d, r.end});
      }
    }
  }
}

}  // namespace

RoundsEstimate EstimateRounds(const RoundsProblem& problem, const Placement& placement) {
  return EstimateRounds(problem, placement, SolvePlacementFlow(*problem.flow, placement).edges);
}

RoundsEstimate EstimateRounds(const RoundsProblem& problem, const Placement& placement,
                              const std::vector<FlowEdge>& edges) {
  const Shares shares(problem, placement, edges);
  if (!shares.carries()) return {};
  if (problem.in_flight && shares.in_flight_max() < *problem.in_flight) return {};
  const double in_flight = problem.in_flight.value_or(shares.in_flight_max());
  double low = 0, high = kRateMax;
  RoundsEstimate best;
  for (int i = 0; i < kRateBisections; ++i) {
    const double rate = (low + high) / 2;
    const auto times = shares.At(rate);
    RoundsLimit limit = RoundsLimit::kNone;
    if (!times) {
      limit = RoundsLimit::kBusy;
    } else if (rate * (problem.output_tokens * times->decode_s + times->prompt_s) > in_flight) {
      limit = RoundsLimit::kKv;
    } else if (times->prompt_s > problem.ttft_s.value_or(times->prompt_s)) {
      limit = RoundsLimit::kTtft;
    } else if (times->decode_s > problem.tpot_s.value_or(times->decode_s)) {
      limit = RoundsLimit::kTpot;
    }
    (limit == RoundsLimit::kNone ? low : high) = rate;
    if (limit == RoundsLimit::kNone) {
      best = {rate, times->decode_s, times->prompt_s, best.limit, {}};
    } else {
      best.limit = limit;
    }
  }
  best.node = best.limit == RoundsLimit::kKv ? shares.fullest() : shares.Busiest();
  return best;
}

GoodputEstimate AsGoodput(const RoundsEstimate& rounds, double output_tokens) {
  GoodputEstimate out;
  out.requests_per_s = rounds.requests_per_s;
  out.decode_tokens_per_s = rounds.requests_per_s * output_tokens;
  out.ttft_s = rounds.prompt_s;
  out.tpot_s = rounds.decode_s;
  out.residence_s = rounds.prompt_s + output_tokens * rounds.decode_s;
  switch (rounds.limit) {
    case RoundsLimit::kNone: out.limit = "nothing flows"; break;
    case RoundsLimit::kBusy: out.limit = "compute of " + rounds.node; break;
    case RoundsLimit::kKv: out.limit = "KV of " + rounds.node; break;
    case RoundsLimit::kTtft: out.limit = "ttft"; break;
    case RoundsLimit::kTpot: out.limit = "tpot"; break;
  }
  return out;
}

Placement SearchRounds(const RoundsProblem& problem, const Placement& start, int64_t iterations,
                       uint64_t seed, const std::function<bool()>& stop) {
  Rng rng(seed);
  Placement now = start, best = start;
  double now_rate = EstimateRounds(problem, now).requests_per_s, best_rate = now_rate;
  for (int64_t i = 0; i < iterations && !(stop && stop()); ++i) {
    Placement next = now;
    const int64_t moves = rng.Between(1, 2);
    for (int64_t m = 0; m < moves; ++m) Propose(*problem.flow, &rng, &next);
    if (next == now) continue;
    const double rate = EstimateRounds(problem, next).requests_per_s;
    const double heat = 0.02 * (1 - static_cast<double>(i) / static_cast<double>(iterations));
    if (rate <= 0 || (rate < now_rate &&
                      (heat <= 0 || rng.Uniform() > std::exp((rate / now_rate - 1) / heat)))) {
      continue;
    }
    now = std::move(next);
    now_rate = rate;
    if (rate > best_rate) {
      best = now;
      best_rate = rate;
    }
  }
  return best;
}

RoundsProblem RoundsOf(const GoodputProblem& problem) {
  constexpr size_t kBatchMax = 1000;
  RoundsProblem out;
  out.flow = &problem.flow;
  for (size_t i = 0; i < problem.rates.size(); ++i) {
    const LayerRates& rates = problem.rates[i];
    RoundsNode node;
    for (size_t batch = 0; batch <= kBatchMax; ++batch) {
      node.decode_s.push_back(rates.decode_s_per_step +
                              static_cast<double>(batch) * rates.decode_s_per_token);
    }
    node.prompt_s = problem.prompt_tokens * rates.prefill_s_per_token;
    node.head_s = rates.head_s_per_step;
    node.kv_token_layers = problem.kv_token_layers[i];
    out.nodes.push_back(std::move(node));
  }
  out.link_latency_s = problem.link_latency_s;
  out.link_tokens_per_s = problem.flow.link_tokens_per_s;
  out.nic_tokens_per_s = problem.nic_tokens_per_s;
  out.machine = problem.machine;
  out.trunks = problem.trunks;
  out.prompt_tokens = problem.prompt_tokens;
  out.output_tokens = problem.output_tokens;
  out.prompt_steps = problem.prompt_steps;
  out.ttft_s = problem.ttft_s;
  out.tpot_s = problem.tpot_s;
  return out;
}

}  // namespace millrace::plan
