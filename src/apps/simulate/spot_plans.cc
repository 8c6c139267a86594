#include "apps/simulate/spot_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "apps/simulate/distserve_plans.h"
#include "cost/memory_model.h"
#include "plan/distserve/distserve_plan.h"
#include "plan/spot/optimizer.h"

namespace millrace::apps {
namespace {

using plan::spot::Profile;

constexpr int kBatchMost = 128;  // of a profile's cells
constexpr double kMillis = 1000;

// The times of one layer as SpotServe measures them, from the costs of a node.
class ProfileMaker {
 public:
  explicit ProfileMaker(const PlanInputs& inputs)
      : inputs_(inputs),
        prompt_(std::max<int64_t>(1, static_cast<int64_t>(inputs.goodput->prompt_tokens))),
        context_(prompt_ + static_cast<int64_t>(inputs.goodput->output_tokens / 2)) {}

  // Without a cell if the costs are not known.
  Profile Make(int batch_max) {
    const NodeSpec& node = inputs_.cluster.nodes.front();
    const int layers = inputs_.spec.num_layers;
    Profile profile;
    profile.layers = profile.padded_layers = layers;
    for (int tensor = 1; tensor <= node.device_count; tensor *= 2) {
      const auto cost = inputs_.costs.Of(node, tensor, inputs_.spec, {0, layers});
      if (!cost.ok()) break;
      profile.tensor_max = tensor;
      for (int batch = 1; batch <= batch_max; batch *= 2) {
        profile.Set(tensor, batch,
                    {.prefill_ms = kMillis * (*cost)->Seconds(Prompts(batch)) / layers,
                     .decode_ms = kMillis * (*cost)->Seconds(Decodes(batch)) / layers});
      }
    }
    for (const LinkSpec& link : inputs_.cluster.links) {
      if (std::max(link.from, link.to) == inputs_.cluster.coordinator()) continue;
      const auto hop_ms = [&](int64_t tokens) {
        const auto bytes =
            static_cast<double>(inputs_.costs.ActivationBytes(inputs_.spec) * tokens);
        return kMillis * (link.latency.seconds() + bytes / link.bytes_per_s);
      };
      profile.stage_prefill_ms = std::max(profile.stage_prefill_ms, hop_ms(prompt_));
      profile.stage_decode_ms = std::max(profile.stage_decode_ms, hop_ms(1));
    }
    return profile;
  }

 private:
  cost::BatchShape Prompts(int batch) const {
    return {.prefill_tokens = batch * prompt_,
            .prefill_tokens_squared = batch * prompt_ * prompt_,
            .prefill_sequences = batch};
  }
  cost::BatchShape Decodes(int batch) const {
    return {.decode_sequences = batch, .decode_context = batch * context_};
  }

  const PlanInputs& inputs_;
  const int64_t prompt_, context_;
};

// The fewest devices that hold the model and a request; nullopt: more than there are.
std::optional<int> DevicesMin(const PlanInputs& inputs, int devices) {
  const NodeSpec& node = inputs.cluster.nodes.front();
  const int layers = inputs.spec.num_layers;
  const double tokens = inputs.goodput->prompt_tokens + inputs.goodput->output_tokens;
  for (int d = 1; d <= std::min(devices, layers); ++d) {
    const auto fits = cost::KvCapacityTokens(inputs.spec, {0, (layers + d - 1) / d},
                                             node.memory_bytes / node.device_count,
                                             inputs.engine.max_num_batched_tokens);
    if (static_cast<double>(fits) >= tokens) return d;
  }
  return std::nullopt;
}

// The planner's own estimate, which knows the limits but no parts of a machine: for machines of
// several devices SpotServe's counts, and if there are limits, nothing.
plan::GoodputEstimate EstimateOf(const PlanInputs& inputs, const LatencyLimits& limits,
                                 const Plan& plan, double throughput_per_s) {
  if (inputs.cluster.nodes.front().device_count > 1) {
    return {.requests_per_s = limits.any() ? 0 : throughput_per_s};
  }
  plan::GoodputProblem problem = *inputs.goodput;
  problem.ttft_s = limits.ttft_s;
  problem.tpot_s = limits.tpot_s;
  plan::Placement placement(inputs.cluster.nodes.size());
  for (const StagePlan& stage : plan.stages) {
    placement[static_cast<size_t>(stage.nodes.front())] = stage.layers;
  }
  return EstimateGoodput(problem, placement);
}

}  // namespace

std::vector<plan::PlanCandidate> SpotServePlans(const PlanInputs& inputs,
                                                const LatencyLimits& limits) {
  const ClusterSpec& cluster = inputs.cluster;
  if (!AreAlike(cluster) || cluster.nodes.size() > plan::DistServeProblem::kNodesMax) return {};
  const int per_node = cluster.nodes.front().device_count;
  const int devices = static_cast<int>(cluster.nodes.size()) * per_node;
  const std::optional<int> least = DevicesMin(inputs, devices);
  if (!least) return {};
  plan::spot::SearchSpace space;
  space.devices_min = *least;
  space.batch_max = static_cast<int>(
      std::bit_floor(static_cast<unsigned>(std::clamp(inputs.engine.max_num_seqs, 1, kBatchMost))));
  space.output_tokens = std::max(1, static_cast<int>(inputs.goodput->output_tokens));
  space.devices_per_instance = per_node;
  space.batching = plan::spot::BatchRule::kContinuous;
  const Profile profile = ProfileMaker(inputs).Make(space.batch_max);
  if (profile.tensor_max == 0) return {};
  plan::spot::OptimizeOptions options;
  if (inputs.workload) options.arrival_variation = inputs.workload->cv * inputs.workload->cv;
  const double load = inputs.requests_per_s.value_or(std::numeric_limits<double>::max());
  const auto found = Optimize(profile, space, devices, load, options);
  if (!found) return {};

  plan::DistServeCandidate units;
  units.unit.mode = plan::ServingMode::kChunked;
  units.unit.prefill = {.tensor = found->config.tensor, .pipeline = found->config.pipeline};
  units.units = found->config.data;
  units.requests_per_s = found->throughput_per_s;
  units.evaluated = true;
  auto made = PlanOfUnits(inputs.goodput->flow, units, inputs.goodput->prompt_tokens,
                          inputs.goodput->output_tokens);
  if (!made.ok()) return {};
  plan::PlanCandidate candidate{.plan = std::move(*made)};
  candidate.estimate = EstimateOf(inputs, limits, candidate.plan, found->throughput_per_s);
  if (candidate.estimate.requests_per_s <= 0) return {};
  candidate.method = fmt::format("SpotServe, (D, P, M, B) = {}", ToString(found->config));
  return {std::move(candidate)};
}

std::vector<plan::PlanCandidate> PlansOfAlikeNodes(const PlanInputs& inputs,
                                                   const LatencyLimits& limits) {
  std::vector<plan::PlanCandidate> plans = DistServePlans(inputs, limits);
  for (plan::PlanCandidate& plan : SpotServePlans(inputs, limits)) plans.push_back(std::move(plan));
  return plans;
}

}  // namespace millrace::apps
