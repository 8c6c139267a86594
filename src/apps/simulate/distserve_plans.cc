#include "apps/simulate/distserve_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "cost/memory_model.h"
#include "plan/distserve/distserve.h"
#include "plan/distserve/distserve_packing.h"
#include "plan/distserve/distserve_plan.h"
#include "sim/placement_evaluator.h"

namespace millrace::apps {
namespace {

constexpr double kNoLimit_s = 1e12;  // every request meets it
constexpr int kLengthsMax = 2000;    // of the workload's requests
constexpr int kPipelineMax = 8;      // deeper pipelines only add latency
constexpr int kEvaluationsMax = 40;
constexpr size_t kPlansMax = 3;
constexpr int kTrialRequestsMin = 200, kTrialRequestsMax = 2000;
constexpr double kTrial_s = 30;

bool Alike(const NodeSpec& a, const NodeSpec& b) {
  return a.device == b.device && a.device_count == b.device_count &&
         a.memory_bytes == b.memory_bytes && a.numeric_class == b.numeric_class &&
         a.nic_bytes_per_s == b.nic_bytes_per_s && a.profile == b.profile;
}

// The slowest link between two nodes. 0: two of them have none. None: there is one node.
std::optional<double> SlowestLink(const ClusterSpec& cluster) {
  const size_t n = cluster.nodes.size();
  if (n < 2) return std::nullopt;
  double slowest = std::numeric_limits<double>::max();
  size_t links = 0;
  for (const LinkSpec& link : cluster.links) {
    if (link.from == cluster.coordinator() || link.to == cluster.coordinator()) continue;
    slowest = std::min(slowest, link.bytes_per_s);
    ++links;
  }
  return links < n * (n - 1) ? 0 : slowest;
}

class UnitSearch {
 public:
  UnitSearch(const PlanInputs& inputs, const LatencyLimits& limits)
      : inputs_(inputs), limits_(limits) {}

  std::vector<plan::PlanCandidate> Run() {
    const ClusterSpec& cluster = inputs_.cluster;
    const NodeSpec& node = cluster.nodes.front();
    if (!limits_.any() || !AreAlike(cluster) ||
        cluster.nodes.size() > plan::DistServeProblem::kNodesMax) {
      return {};
    }
    link_ = SlowestLink(cluster);
    const plan::DistServeProblem problem = ProblemOf(node);
    if (problem.parallels.empty()) return {};
    sim::PlacementEvaluator evaluator(
        OptionsOf(node), [this](const plan::Parallel& parallel) { return KindOf(parallel); });
    plan::DistServeOptions options;
    options.colocated = false;  // a server mixes prompts and outputs in its steps: chunked
    options.evaluations_max = kEvaluationsMax;
    const auto found = SearchDistServe(problem, evaluator.Callbacks(), options);
    if (!found.ok()) return {};
    Take(found->best);
    for (const plan::DistServeCandidate& other : found->others) Take(other);
    return std::move(plans_);
  }

 private:
  plan::DistServeProblem ProblemOf(const NodeSpec& node) const {
    plan::DistServeProblem problem;
    problem.nodes = static_cast<int>(inputs_.cluster.nodes.size());
    problem.devices_per_node = node.device_count;
    const plan::NodeGrid grid{problem.nodes, problem.devices_per_node};
    for (const plan::Parallel& parallel :
         LegalParallels(inputs_.spec, node.memory_bytes / node.device_count, grid)) {
      if (parallel.pipeline <= kPipelineMax) problem.parallels.push_back(parallel);
    }
    problem.kv.bytes_per_request =
        inputs_.goodput->prompt_tokens * static_cast<double>(inputs_.spec.KvBytesPerToken());
    if (link_) problem.kv.nic_bytes_per_s = Network(node);
    problem.kv.across_nodes = inputs_.cluster.kv_affinity.empty();
    problem.ttft_s = limits_.ttft_s.value_or(kNoLimit_s);
    problem.tpot_s = limits_.tpot_s.value_or(kNoLimit_s);
    return problem;
  }

  double Network(const NodeSpec& node) const {
    return std::min(*link_, node.nic_bytes_per_s.value_or(*link_));
  }

  sim::PlacementOptions OptionsOf(const NodeSpec& node) const {
    sim::PlacementOptions options;
    options.lengths = Lengths();
    options.ttft_s = limits_.ttft_s.value_or(kNoLimit_s);
    options.tpot_s = limits_.tpot_s.value_or(kNoLimit_s);
    options.goodput = {.attainment = limits_.share(), .seeds = 1, .precision = 0.05};
    options.screening = options.goodput;
    options.trial_s = kTrial_s;
    options.requests_min = kTrialRequestsMin;
    options.requests_max = kTrialRequestsMax;
    options.chunk_tokens = options.batch_tokens = inputs_.engine.max_num_batched_tokens;
    options.sequences_max = inputs_.engine.max_num_seqs;
    options.kv_bytes_per_token = static_cast<double>(inputs_.spec.KvBytesPerToken());
    if (link_) options.nic_bytes_per_s = Network(node);
    options.devices_per_node = node.device_count;
    return options;
  }

  std::vector<sim::Lengths> Lengths() const {
    std::vector<sim::Lengths> lengths;
    if (!inputs_.workload) {
      return {{static_cast<int>(inputs_.goodput->prompt_tokens),
               static_cast<int>(inputs_.goodput->output_tokens)}};
    }
    const auto requests = inputs_.workload->Make(0);
    while (std::ssize(lengths) < kLengthsMax) {
      const auto request = requests->Next();
      if (!request) break;
      lengths.push_back({request->prompt_tokens, request->output_tokens});
    }
    return lengths;
  }

  // A stage per even share of the layers, each at its own cost. Nothing if the costs do not cover
  // several devices.
  sim::PlacementKind KindOf(const plan::Parallel& parallel) const {
    const NodeSpec& node = inputs_.cluster.nodes.front();
    const int each = inputs_.spec.num_layers / parallel.pipeline;
    const int64_t memory = node.memory_bytes / node.device_count * parallel.tensor;
    sim::PlacementKind kind;
    kind.kv_tokens = std::numeric_limits<int64_t>::max();
    for (int s = 0; s < parallel.pipeline; ++s) {
      const LayerRange layers{s * each, (s + 1) * each};
      auto cost = inputs_.costs.Of(node, parallel.tensor, inputs_.spec, layers);
      if (!cost.ok()) return {};
      kind.stages.push_back(std::move(*cost));
      kind.kv_tokens =
          std::min(kind.kv_tokens, cost::KvCapacityTokens(inputs_.spec, layers, memory,
                                                          inputs_.engine.max_num_batched_tokens));
    }
    return kind;
  }

  void Take(const plan::DistServeCandidate& candidate) {
    if (!candidate.evaluated || candidate.requests_per_s <= 0 || plans_.size() == kPlansMax) return;
    auto made = PlanOfUnits(inputs_.goodput->flow, candidate, inputs_.goodput->prompt_tokens,
                            inputs_.goodput->output_tokens);
    if (!made.ok()) return;
    plan::PlanCandidate& added = plans_.emplace_back();
    added.plan = std::move(*made);
    added.estimate.requests_per_s = candidate.requests_per_s;
    added.estimate.limit = candidate.limited_by;
    added.method =
        fmt::format("DistServe, {} units of {}", candidate.units, candidate.unit.ToString());
    added.roles = plan::HasRoles(added.plan);
  }

  const PlanInputs& inputs_;
  const LatencyLimits limits_;
  std::optional<double> link_;
  std::vector<plan::PlanCandidate> plans_;
};

}  // namespace

bool AreAlike(const ClusterSpec& cluster) {
  if (cluster.nodes.empty() || !cluster.trunks.empty()) return false;
  const NodeSpec& node = cluster.nodes.front();
  return SlowestLink(cluster).value_or(1) > 0 &&
         std::ranges::all_of(cluster.nodes,
                             [&](const NodeSpec& other) { return Alike(node, other); });
}

std::vector<plan::PlanCandidate> DistServePlans(const PlanInputs& inputs,
                                                const LatencyLimits& limits) {
  return UnitSearch(inputs, limits).Run();
}

}  // namespace millrace::apps
