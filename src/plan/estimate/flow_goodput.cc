#include "plan/estimate/flow_goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace millrace::plan {
namespace {

constexpr double kUtilisationMax = 0.95;  // beyond it, queues grow without bound
constexpr int kBisections = 40;

// Load and latency per request per second, along fixed shares of the edges.
class Along {
 public:
  Along(const GoodputProblem& problem, const Placement& placement,
        const std::vector<FlowEdge>& edges)
      : problem_(problem), placement_(placement), edges_(edges) {
    for (const FlowEdge& e : edges) total_ += e.from ? 0 : e.tokens_per_s;
    tokens_per_request_ = problem.prompt_tokens + problem.output_tokens;
    FindSharedLinks();
    layers_.assign(problem.flow.num_nodes(), 0);
    ends_.assign(problem.flow.num_nodes(), 0);
    for (const FlowEdge& e : edges) {
      if (e.to) layers_[*e.to] += Share(e) * Entered(e);
      if (e.from && !e.to) ends_[*e.from] += Share(e);
    }
  }

  double total() const { return total_; }
  double tokens_per_request() const { return tokens_per_request_; }

  // The estimate at `rate` requests per second; its `limit` is empty if all limits hold.
  GoodputEstimate At(double rate) const {
    GoodputEstimate e;
    e.requests_per_s = rate;
    e.decode_tokens_per_s = rate * problem_.output_tokens;
    double step_s = 0, prefill_s = 0;
    for (int i = 0; i < problem_.flow.num_nodes(); ++i) {
      if (layers_[i] <= 0) continue;
      const LayerRates& r = problem_.rates[i];
      const double prefill = rate * problem_.prompt_tokens * layers_[i] * r.prefill_s_per_token;
      const double token_s = layers_[i] * r.decode_s_per_token + ends_[i] * r.head_s_per_token;
      const double decode = rate * problem_.output_tokens * token_s;
      if (prefill + decode > kUtilisationMax) return Limited(e, "compute of", i);
      // A batch holds what arrived during the previous one, so higher load means larger and slower
      // batches.
      const double slowed = 1 / (1 - prefill - decode);
      step_s +=
          (layers_[i] * r.decode_s_per_step + ends_[i] * r.head_s_per_step + token_s) * slowed;
      prefill_s += layers_[i] * problem_.prompt_tokens * r.prefill_s_per_token * slowed;
    }
    const double hops_s = HopLatency();
    e.tpot_s = step_s + hops_s + Transfer(1);
    e.ttft_s = prefill_s + hops_s + Transfer(problem_.prompt_tokens);
    e.residence_s = e.ttft_s + problem_.output_tokens * e.tpot_s;
    CheckKv(e);
    if (e.limit.empty() && problem_.ttft_s && e.ttft_s > *problem_.ttft_s) e.limit = "ttft";
    if (e.limit.empty() && problem_.tpot_s && e.tpot_s > *problem_.tpot_s) e.limit = "tpot";
    if (e.limit.empty()) CheckTrunks(e);
    if (e.limit.empty() && rate > shared_most_) e.limit = "a link between two machines";
    return e;
  }

 private:
  double Share(const FlowEdge& e) const { return e.tokens_per_s / total_; }
  // Layers run on entering `e`, counted from the end of the previous stage.
  int Entered(const FlowEdge& e) const {
    return placement_[*e.to].end - (e.from ? placement_[*e.from].end : 0);
  }
  int Row(const std::optional<int>& node) const {
    return node ? *node : problem_.flow.coordinator();
  }
  GoodputEstimate Limited(GoodputEstimate e, const char* what, int node) const {
    e.limit = fmt::format("{} {}", what, problem_.flow.nodes[node].name);
    return e;
  }
  // Flows keep to the links of each node. Those of several parts of a machine share its links.
  void FindSharedLinks() {
    if (problem_.machine.empty()) return;
    std::map<std::pair<int, int>, double> shares;
    for (const FlowEdge& e : edges_) {
      const int from = MachineOf(problem_.machine, Row(e.from));
      const int to = MachineOf(problem_.machine, Row(e.to));
      if (from == to) continue;
      const double share = shares[{from, to}] += Share(e);
      const double most = problem_.flow.Link(Row(e.from), Row(e.to)) / tokens_per_request_ / share;
      shared_most_ = std::min(shared_most_, most);
    }
  }
  // The mean latency of a request's hops, including the return.
  double HopLatency() const {
    double sum = 0;
    for (const FlowEdge& e : edges_) {
      const int cell = Row(e.from) * (problem_.flow.num_nodes() + 1) + Row(e.to);
      sum += Share(e) * problem_.link_latency_s[cell];
    }
    return sum;
  }
  // The mean time that `tokens` tokens of one request spend on links.
  double Transfer(double tokens) const {
    double sum = 0;
    for (const FlowEdge& e : edges_) {
      sum += Share(e) * tokens / problem_.flow.Link(Row(e.from), Row(e.to));
    }
    return sum;
  }
  // Little's law: rate x residence requests hold their tokens on the layers they run. On average
  // half of the output exists.
  void CheckKv(GoodputEstimate& e) const {
    const double held = problem_.prompt_tokens + problem_.output_tokens / 2;
    for (int i = 0; i < problem_.flow.num_nodes(); ++i) {
      if (layers_[i] <= 0) continue;
      const double capacity =
          static_cast<double>(problem_.kv_token_layers[i][placement_[i].size() - 1]);
      if (e.requests_per_s * e.residence_s * held * layers_[i] <= capacity) continue;
      e.limit = "KV of " + problem_.flow.nodes[i].name;
      return;
    }
  }
  void CheckTrunks(GoodputEstimate& e) const {
    for (size_t t = 0; t < problem_.trunks.size(); ++t) {
      double tokens = 0;
      for (const FlowEdge& edge : edges_) {
        const std::pair<int, int> link = {Row(edge.from), Row(edge.to)};
        const auto& links = problem_.trunks[t].links;
        if (std::find(links.begin(), links.end(), link) != links.end()) {
          tokens += e.requests_per_s * tokens_per_request_ * Share(edge);
        }
      }
      if (tokens > problem_.trunks[t].tokens_per_s) e.limit = fmt::format("trunk {}", t);
    }
  }

  const GoodputProblem& problem_;
  const Placement& placement_;
  const std::vector<FlowEdge>& edges_;
  double total_ = 0, tokens_per_request_ = 0;
  double shared_most_ = kTokenRateMax;  // requests per second
  std::vector<double> layers_;          // layers that the mean request runs on each node
  std::vector<double> ends_;            // share of the requests that end the model there
};

}  // namespace

LayerRates FitLayerRates(const cost::LayerTable& table) {
  constexpr double kPrompt = 750, kSmall = 8, kLarge = 256;
  LayerRates rates;
  rates.prefill_s_per_token = table.PromptSeconds(kPrompt) / kPrompt;
  const double small = table.DecodeSeconds(kSmall), large = table.DecodeSeconds(kLarge);
  rates.decode_s_per_token = std::max(0.0, (large - small) / (kLarge - kSmall));
  rates.decode_s_per_step = std::max(0.0, small - kSmall * rates.decode_s_per_token);
  return rates;
}

GoodputEstimate EstimateAlong(const GoodputProblem& problem, const Placement& placement,
                              const std::vector<FlowEdge>& edges) {
  const Along along(problem, placement, edges);
  if (along.total() <= kFlowMin) return {.limit = "nothing flows"};
  // Links, and compute by Helix's T(k), limit it at the flow itself; the other limits lie below.
  double low = 0, high = along.total() / along.tokens_per_request();
  GoodputEstimate best = along.At(high);
  if (best.limit.empty()) {
    best.limit = "flow";
    return best;
  }
  std::string limit = best.limit;
  for (int step = 0; step < kBisections; ++step) {
    const double middle = (low + high) / 2;
    const GoodputEstimate e = along.At(middle);
    (e.limit.empty() ? low : high) = middle;
    if (!e.limit.empty()) limit = e.limit;
  }
  best = along.At(low);
  best.limit = limit;
  return best;
}

GoodputEstimate EstimateGoodput(const GoodputProblem& problem, const Placement& placement) {
  const auto whole = [&](const Placement& left) {
    return EstimateAlong(problem, left, SolvePlacementFlow(problem.flow, left).edges);
  };
  GoodputEstimate worst = whole(placement);
  for (const int node : problem.losable) {
    if (placement[node].size() == 0) continue;
    Placement left = placement;
    left[node] = {};
    GoodputEstimate e = whole(left);
    if (e.requests_per_s >= worst.requests_per_s) continue;
    worst = std::move(e);
    worst.limit =
        fmt::format("{} after the loss of {}", worst.limit, problem.flow.nodes[node].name);
  }
  return worst;
}

}  // namespace millrace::plan
