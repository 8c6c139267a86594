#include "plan/roles/role_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::plan {
namespace {

constexpr double kTpotForLayers =
    0.9;  // of the limit, for the layers; hops and waiting take the rest
constexpr double kMeanTtft = 0.5, kMeanTpot = 0.9;  // of the limits, where prompts disturb outputs

// Sequences that fit beside `layers` layers, divided over the stages of a route through such nodes.
double BatchOf(const GoodputProblem& problem, int node, int layers) {
  const double mean = problem.prompt_tokens + problem.output_tokens / 2;
  const auto kv = static_cast<double>(problem.kv_token_layers[node][layers - 1]);
  const double stages = std::ceil(static_cast<double>(problem.flow.num_layers) / layers);
  return std::min<double>(problem.max_sequences, kv / layers / mean / stages);
}

double DecodeRate(const LayerRates& rates, int layers, double batch) {
  const double whole = std::max(1.0, batch);
  // Less than one sequence at a time: the node is idle in between.
  return std::min(1.0, batch) * whole /
         (layers * (rates.decode_s_per_step + whole * rates.decode_s_per_token));
}

// The largest batch with which a route through such nodes keeps the TPOT limit.
double BatchWithinTpot(const GoodputProblem& problem, const LayerRates& rates) {
  const double most = problem.max_sequences;
  if (!problem.tpot_s) return most;
  const double layer_s = *problem.tpot_s / problem.flow.num_layers;
  const double room = layer_s - rates.decode_s_per_step;
  if (rates.decode_s_per_token <= 0) return most;
  return std::clamp(room / rates.decode_s_per_token, 1.0, most);
}

bool Reaches(const GoodputProblem& problem, int from, int to) {
  const auto n = static_cast<size_t>(problem.flow.num_nodes());
  if (!problem.kv_reach.empty() && !problem.kv_reach[static_cast<size_t>(from) * n + to]) {
    return false;
  }
  return problem.flow.Link(from, to) > 0;
}

// Nodes join the first domain whose members they all reach.
void FindDomains(RoleProblem& problem) {
  const int n = problem.num_nodes();
  std::vector<std::vector<int>> members;
  problem.domain.assign(n, 0);
  for (int node = 0; node < n; ++node) {
    const auto all = [&](const std::vector<int>& domain) {
      return std::ranges::all_of(domain, [&](int other) {
        return Reaches(*problem.goodput, node, other) && Reaches(*problem.goodput, other, node);
      });
    };
    auto at = std::ranges::find_if(members, all);
    if (at == members.end()) at = members.insert(members.end(), std::vector<int>());
    at->push_back(node);
    problem.domain[node] = static_cast<int>(at - members.begin());
  }
  problem.num_domains = static_cast<int>(members.size());
}

// The most layer tokens per second of one phase, whatever number of layers the node holds.
double MostLayerTokens(const std::vector<double>& tokens_per_s) {
  double best = 0;
  for (size_t k = 0; k < tokens_per_s.size(); ++k) {
    best = std::max(best, static_cast<double>(k + 1) * tokens_per_s[k]);
  }
  return best;
}

}  // namespace

void AddPhaseRates(GoodputProblem& problem) {
  for (int i = 0; i < problem.flow.num_nodes(); ++i) {
    FlowNode& node = problem.flow.nodes[i];
    const LayerRates& rates = problem.rates[i];
    const double card = problem.nic_tokens_per_s.empty() ? 0 : problem.nic_tokens_per_s[i];
    const auto within_card = [&](double rate) { return card > 0 ? std::min(rate, card) : rate; };
    node.prefill_tokens_per_s.clear();
    node.decode_tokens_per_s.clear();
    for (int k = 1; k <= node.max_layers(); ++k) {
      const double prompt_s = k * rates.prefill_s_per_token;
      node.prefill_tokens_per_s.push_back(
          within_card(prompt_s > 0 ? std::min(1 / prompt_s, kTokenRateMax) : kTokenRateMax));
      node.decode_tokens_per_s.push_back(
          within_card(std::min(DecodeRate(rates, k, BatchOf(problem, i, k)), kTokenRateMax)));
    }
  }
}

RoleProblem RolesOf(const GoodputProblem& problem) {
  RoleProblem out;
  out.goodput = &problem;
  out.both = RoundsOf(problem);
  if (problem.ttft_s) out.both.ttft_s = *problem.ttft_s * kMeanTtft;
  if (problem.tpot_s) out.both.tpot_s = *problem.tpot_s * kMeanTpot;
  out.prefill = out.decode = problem.flow;
  out.prefill.partial_inference = out.decode.partial_inference = false;
  for (int i = 0; i < problem.flow.num_nodes(); ++i) {
    const FlowNode& node = problem.flow.nodes[i];
    out.prefill.nodes[i].tokens_per_s = node.prefill_tokens_per_s;
    std::vector<double>& decode = out.decode.nodes[i].tokens_per_s;
    decode = node.decode_tokens_per_s;
    const double batch = BatchWithinTpot(problem, problem.rates[i]);
    for (size_t k = 0; k < decode.size(); ++k) {
      decode[k] = std::min(decode[k], DecodeRate(problem.rates[i], static_cast<int>(k) + 1, batch));
    }
  }
  FindDomains(out);
  return out;
}

Placement PoolOf(const RoleProblem& problem, const RolePlacement& placement, StageRole role,
                 int domain) {
  Placement pool(placement.layers.size());
  for (size_t i = 0; i < pool.size(); ++i) {
    if (placement.roles[i] == role && problem.domain[i] == domain) pool[i] = placement.layers[i];
  }
  return pool;
}

double RoleBound(const GoodputProblem& problem) {
  struct Rates {
    double prefill = 0, decode = 0;
  };
  std::vector<Rates> nodes;
  for (const FlowNode& node : problem.flow.nodes) {
    nodes.push_back({MostLayerTokens(node.prefill_tokens_per_s) / problem.flow.num_layers,
                     MostLayerTokens(node.decode_tokens_per_s) / problem.flow.num_layers});
  }
  std::ranges::sort(nodes, [](const Rates& a, const Rates& b) {
    return a.prefill * b.decode > b.prefill * a.decode;
  });
  // Nodes prefill in this order until the rest decodes just as many requests.
  double decode = 0;
  for (const Rates& node : nodes) decode += node.decode;
  double prefill = 0;
  const double prompt = problem.prompt_tokens, output = problem.output_tokens;
  for (const Rates& node : nodes) {
    const double after_prefill = prefill + node.prefill, after_decode = decode - node.decode;
    if (after_prefill / prompt < after_decode / output) {
      prefill = after_prefill;
      decode = after_decode;
      continue;
    }
    // The share x of this node's time: (prefill + x p) / prompt = (decode - x d) / output.
    const double gain = node.prefill / prompt + node.decode / output;
    const double x =
        gain > 0 ? std::clamp((decode / output - prefill / prompt) / gain, 0.0, 1.0) : 0;
    const double requests =
        std::min((prefill + x * node.prefill) / prompt, (decode - x * node.decode) / output);
    return requests * (prompt + output);
  }
  return std::min(prefill / prompt, decode / output) * (prompt + output);
}

}  // namespace millrace::plan
