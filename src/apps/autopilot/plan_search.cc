#include "apps/autopilot/plan_search.h"

#include <algorithm>
#include <utility>

#include "apps/plan/goodput_search.h"
#include "apps/plan/inputs.h"
#include "apps/simulate/judge.h"
#include "apps/simulate/spot_plans.h"
#include "base/log_mute.h"
#include "cluster/autopilot/plan_shape.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

using cluster::ClusterStatus;
using cluster::PlanForecast;
using cluster::SearchAnswer;
using cluster::StartSearch;

constexpr double kVariationMin = 0.1, kVariationMax = 5;  // of arrivals, beyond it is chance
constexpr double kSearchRateMin = 1e-3;
// Without a request so far: as `millrace plan` without --workload.
constexpr int kAssumedPromptTokens = 763, kAssumedOutputTokens = 232;

sim::WorkloadSpec MeasuredWorkload(const StartSearch& order) {
  sim::WorkloadSpec spec;
  spec.arrivals = sim::ArrivalKind::kGamma;
  spec.cv = std::clamp(order.load.variation, kVariationMin, kVariationMax);
  spec.rate = std::max(kSearchRateMin, order.planned_requests_per_s);
  spec.prompt.a = order.load.prompt_tokens > 0 ? order.load.prompt_tokens : kAssumedPromptTokens;
  spec.output.a = order.load.output_tokens > 0 ? order.load.output_tokens : kAssumedOutputTokens;
  for (const auto& [prompt, output] : order.lengths) spec.lengths.push_back({prompt, output});
  return spec;
}

std::vector<std::string> NamesOf(const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const NodeSpec& node : cluster.nodes) names.push_back(node.name);
  return names;
}

// The plan in force with the stages that still have their workers; nullopt: there are none.
std::optional<Plan> PlanInForce(const ClusterStatus& status, const ClusterSpec& cluster) {
  const std::vector<std::string> names = NamesOf(cluster);
  Plan plan = status.plan;
  if (status.stages.size() != plan.stages.size()) return std::nullopt;
  std::vector<std::optional<int>> kept(plan.stages.size());
  std::vector<StagePlan> stages;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    StagePlan stage = plan.stages[i];
    stage.nodes.clear();
    for (const std::string& worker : status.stages[i].workers) {
      const auto found = std::ranges::find(names, worker);
      if (found != names.end())
        stage.nodes.push_back(static_cast<NodeIndex>(found - names.begin()));
    }
    if (stage.nodes.empty() || stage.nodes.size() != status.stages[i].workers.size()) continue;
    // A worker uses all devices of its node.
    const NodeSpec& first = cluster.nodes[static_cast<size_t>(stage.nodes.front())];
    stage.tensor_parallel = std::max(stage.tensor_parallel, first.device_count);
    kept[i] = static_cast<int>(stages.size());
    stages.push_back(std::move(stage));
  }
  if (stages.empty()) return std::nullopt;
  std::vector<PlanEdge> edges;
  for (PlanEdge edge : plan.edges) {
    const auto moved = [&kept](std::optional<int>& end) {
      if (!end) return true;
      end = kept[static_cast<size_t>(*end)];
      return end.has_value();
    };
    if (moved(edge.from) && moved(edge.to)) edges.push_back(edge);
  }
  plan.stages = std::move(stages);
  plan.edges = std::move(edges);
  plan.unused.clear();
  return plan;
}

}  // namespace

bool MayGetLayers(const ClusterStatus& status, std::string_view worker) {
  const auto found = std::ranges::find(status.workers, worker, &cluster::WorkerStatus::name);
  if (found == status.workers.end() || !found->usable || found->draining) return false;
  return !(found->notice && found->notice->hard);
}

SearchAnswer PlanSearch::operator()(const StartSearch& order, const ClusterStatus& status,
                                    const PlanInputsFor& inputs_for) {
  const LogMute mute;  // the judged clusters lose workers that ours has
  const Time begin = Now();
  auto found = Search(order, status, inputs_for);
  SearchAnswer answer;
  if (found.ok()) {
    answer = std::move(*found);
  } else {
    answer.status = found.status();
  }
  answer.seconds = (Now() - begin).seconds();
  return answer;
}

Result<SearchAnswer> PlanSearch::Search(const StartSearch& order, const ClusterStatus& status,
                                        const PlanInputsFor& inputs_for) {
  MR_ASSIGN_OR_RETURN(PlanInputs inputs, inputs_for(MeasuredWorkload(order)));
  inputs.limits = options_.limits;

  const auto stop = [this, begin = Now()] {
    return stopped_ || (Now() - begin).seconds() >= options_.time_limit_s;
  };
  GoodputSearchOptions search;
  search.limits = options_.limits;
  search.clock = options_.clock;
  search.time_limit_s = options_.time_limit_s;
  search.effort = options_.effort;
  const double planned = *inputs.requests_per_s;
  JudgeBounds bounds{.requests = options_.effort * JudgeBounds().requests};
  if (options_.enough) bounds.requests_per_s = *options_.enough * planned;
  search.judge = SimulatedGoodput(inputs, options_.limits, stop, bounds);
  SearchAnswer answer;
  // First: the time limit must not take it away.
  if (const auto current = PlanInForce(status, inputs.cluster)) {
    PlanForecast in_force{.shape = cluster::PlanShape(*current, NamesOf(inputs.cluster)),
                          .method = "in force"};
    const auto carries = SimulatedRate(inputs, options_.limits, planned, bounds);
    if (options_.limits.any() && !status.missing) {
      if (const auto kept = carries(*current); kept.ok() && *kept) {
        in_force.requests_per_s = planned;
        answer.current = in_force;
        answer.found.push_back(std::move(in_force));
        return answer;  // no plan answers more
      }
    }
    if (const auto score = search.judge(*current, {.estimated = planned}); score.ok()) {
      in_force.requests_per_s = *score;
      answer.current = std::move(in_force);
    }
  }
  search.others = PlansOfAlikeNodes(inputs, options_.limits);
  MR_ASSIGN_OR_RETURN(const GoodputAnswer found, SearchGoodput(inputs, search));
  for (const plan::PlanCandidate& candidate : found.ranked) {
    if (!candidate.score && found.best().score) continue;  // not comparable
    answer.found.push_back(
        {.shape = cluster::PlanShape(candidate.plan, NamesOf(inputs.cluster)),
         .plan =
             std::make_shared<const WorkerPlan>(plan::OnWorkers(candidate.plan, inputs.cluster)),
         .method = candidate.method,
         .requests_per_s = candidate.score.value_or(candidate.estimate.requests_per_s)});
  }
  return answer;
}

}  // namespace millrace::apps
