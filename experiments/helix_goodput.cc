#include "experiments/helix_goodput.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"

namespace millrace::experiments {
namespace {

constexpr double kCopySPerByte = 1 / 4e9 + 1 / 5e9;  // joining and copying what comes to a node
constexpr double kKvShare = 0.8;                     // of a node's cache that may be promised
constexpr double kBusiest = 0.95;                    // of a link
constexpr double kSlowest = 60;                      // seconds to come round once
constexpr double kSpread = 1.6;                      // E[S^2] / E[S]^2 of the prompts' lengths
constexpr int kRounds = 8;

// What a placement's shares make of the nodes and links it uses, per request.
class Shares {
 public:
  Shares(const GoodputProblem& problem, const plan::Placement& placement)
      : problem_(problem), flow_(plan::SolvePlacementFlow(*problem.flow, placement)) {
    const double bytes = problem.model->activation_bytes + problem.model->token_bytes;
    for (size_t i = 0; i < placement.size() && carries(); ++i) {
      if (flow_.node_tokens_per_s[i] < plan::kFlowMin) continue;
      const sim::HelixGpu& gpu = problem.model->gpus.at(problem.flow->nodes[i].kind);
      const int layers = placement[i].size();
      const double share = flow_.node_tokens_per_s[i] / flow_.tokens_per_s;
      const double per_request =
          share * layers * (problem.mean_input_tokens + problem.mean_output_tokens);
      const auto kv = static_cast<double>(gpu.LimitsOf(layers).kv_entries);
      in_flight_max_ = std::min(in_flight_max_, kKvShare * kv / per_request);
      const double prompt_s =
          layers * gpu.prompt_s[PromptTokens()] + problem.mean_input_tokens * bytes * kCopySPerByte;
      nodes_.push_back({&gpu, layers, share, prompt_s});
    }
    for (const plan::FlowEdge& edge : flow_.edges) AddLink(edge, bytes);
  }

  bool carries() const { return flow_.tokens_per_s > plan::kFlowMin; }
  double in_flight_max() const { return in_flight_max_; }

  // Seconds of a decode iteration and of a prompt at `rate` requests per second; none: too much.
  struct Times {
    double decode_s = 0, prompt_s = 0;
  };
  std::optional<Times> At(double rate) const {
    Times times;
    for (const Node& node : nodes_) {
      const auto stay = StayAt(node, rate);
      if (!stay) return std::nullopt;
      times.decode_s += node.share * stay->decode_s;
      times.prompt_s += node.share * stay->prompt_s;
    }
    for (const Link& link : links_) {
      const double prompts = rate * link.share;
      const double busy = prompts * (link.prompt_s + problem_.mean_output_tokens * link.decode_s);
      if (busy > kBusiest) return std::nullopt;
      const double wait = kSpread * prompts * link.prompt_s * link.prompt_s / (2 * (1 - busy));
      times.decode_s += link.share * (link.latency_s + link.decode_s + wait);
      times.prompt_s += link.share * (link.latency_s + link.prompt_s + wait);
    }
    return times;
  }

 private:
  struct Node {
    const sim::HelixGpu* gpu;
    int layers;
    double share, prompt_s;  // of all its layers
  };
  struct Link {
    double share, latency_s, prompt_s, decode_s;
  };

  size_t PromptTokens() const { return static_cast<size_t>(problem_.mean_input_tokens); }

  void AddLink(const plan::FlowEdge& edge, double inner_bytes) {
    const int n = problem_.flow->num_nodes();
    const int from = edge.from.value_or(n), to = edge.to.value_or(n);
    const double bytes = edge.from && edge.to ? inner_bytes : problem_.model->token_bytes;
    for (const LinkSpec& link : problem_.cluster->links) {
      if (link.from != from || link.to != to) continue;
      links_.push_back({edge.tokens_per_s / flow_.tokens_per_s, link.latency.seconds(),
                        problem_.mean_input_tokens * bytes / link.bytes_per_s,
                        bytes / link.bytes_per_s});
      return;
    }
  }

  // A round runs every layer once for what came during the one before; few rounds have a prompt,
  // and those are long. Who comes finds a long round more often than a short one, waits for its
  // rest, and then runs with what came meanwhile.
  std::optional<Times> StayAt(const Node& node, double rate) const {
    const double prompts = rate * node.share;
    const double decodes = prompts * problem_.mean_output_tokens;
    const double load = prompts * node.prompt_s;
    if (load >= kBusiest) return std::nullopt;
    double mean = 0, plain = 0;
    for (int i = 0; i < kRounds; ++i) {
      const double batch = std::clamp(decodes * mean, 2.0, 1000.0);
      plain = node.layers * node.gpu->decode_s[static_cast<size_t>(batch)];
      mean = plain + prompts * mean * node.prompt_s;
      if (mean > kSlowest) return std::nullopt;
    }
    const double with_prompt = std::min(1.0, prompts * mean), p = node.prompt_s;
    const double square = plain * plain + with_prompt * (2 * plain * p + kSpread * p * p);
    const double met = square / (plain + with_prompt * p);
    const double behind = met / 2 + prompts * met * p;
    return Times{behind + plain, behind + plain + p};
  }

  const GoodputProblem& problem_;
  plan::PlacementFlow flow_;
  std::vector<Node> nodes_;
  std::vector<Link> links_;
  double in_flight_max_ = 1e18;
};

// One proposal: some node's range moves, grows, shrinks, or becomes another's.
void Propose(const plan::FlowProblem& problem, Rng* rng, plan::Placement* placement) {
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
      // The boundary between all that end and all that begin where `i` ends.
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

Goodput EstimateGoodput(const GoodputProblem& problem, const plan::Placement& placement) {
  const Shares shares(problem, placement);
  if (!shares.carries() || shares.in_flight_max() < problem.in_flight) return {};
  double low = 0, high = 100;
  Goodput best;
  for (int i = 0; i < 24; ++i) {
    const double rate = (low + high) / 2;
    const auto times = shares.At(rate);
    const bool room =
        times && rate * (problem.mean_output_tokens * times->decode_s + times->prompt_s) <=
                     problem.in_flight;
    (room ? low : high) = rate;
    if (room) best = {rate, times->decode_s};
  }
  return best;
}

plan::Placement SearchGoodput(const GoodputProblem& problem, const plan::Placement& start,
                              int64_t iterations, uint64_t seed) {
  Rng rng(seed);
  plan::Placement now = start, best = start;
  double now_rate = EstimateGoodput(problem, now).requests_per_s, best_rate = now_rate;
  for (int64_t i = 0; i < iterations; ++i) {
    plan::Placement next = now;
    const int64_t moves = rng.Between(1, 2);
    for (int64_t m = 0; m < moves; ++m) Propose(*problem.flow, &rng, &next);
    const double rate = EstimateGoodput(problem, next).requests_per_s;
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

}  // namespace millrace::experiments
