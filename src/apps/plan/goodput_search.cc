#include "apps/plan/goodput_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/plan/limit_advice.h"
#include "base/log.h"
#include "plan/cheapest_goodput.h"
#include "plan/roles/after_loss.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::apps {
namespace {

constexpr double kRequestsPerSMin = 1e-6;  // a lower goodput counts as none
// Share of the time limit reserved for finding the nearest limits if none can be met.
constexpr double kAnswerShare = 0.2;
constexpr double kCheapestFirst = 0.4;  // of the time limit, for the search with all machines
constexpr size_t kLossesJudged = 2;     // of a plan, by simulation
constexpr double kSame = 0.005;         // rates closer than this are equal to a person

std::vector<int> LosableNodes(const ClusterSpec& cluster) {
  std::vector<int> spot, all;
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    all.push_back(static_cast<int>(i));
    if (cluster.nodes[i].spot) spot.push_back(static_cast<int>(i));
  }
  return spot.empty() ? all : spot;
}

bool HasSpot(const ClusterSpec& cluster) {
  return std::ranges::any_of(cluster.nodes, [](const NodeSpec& node) { return node.spot; });
}

// Judges what is left after the losses that the estimate finds worst. `problem` outlives it.
plan::Evaluator AfterWorstLosses(plan::Evaluator judge, const plan::GoodputProblem& problem) {
  return [judge = std::move(judge), &problem](const Plan& plan,
                                              const plan::JudgeHints& hints) -> Result<double> {
    std::vector<plan::AfterLoss> losses = PlansAfterLoss(problem, plan);
    if (losses.empty()) return judge(plan, hints);
    if (losses.front().plan.stages.empty()) return 0.0;
    if (losses.size() > kLossesJudged) losses.resize(kLossesJudged);
    std::optional<double> worst;
    for (const plan::AfterLoss& loss : losses) {
      MR_ASSIGN_OR_RETURN(const double score, judge(loss.plan, hints));
      worst = std::min(worst.value_or(score), score);
    }
    return *worst;
  };
}

// "2 x h100-80gb"
std::string NodesWithRole(Plan plan, const ClusterSpec& cluster, StageRole role) {
  std::erase_if(plan.stages, [role](const StagePlan& stage) { return stage.role != role; });
  std::map<std::string, int> kinds;
  for (const NodeIndex index : sim::UsedNodes(plan)) {
    const NodeSpec& node = cluster.nodes[static_cast<size_t>(index)];
    ++kinds[node.device_count == 1 ? node.device
                                   : fmt::format("{}x{}", node.device, node.device_count)];
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : kinds) parts.push_back(fmt::format("{} x {}", count, kind));
  return Printable(fmt::format("{}", fmt::join(parts, " + ")));
}

std::string RolesText(const Plan& plan, const ClusterSpec& cluster) {
  std::vector<std::string> parts;
  for (const auto& [role, name] :
       {std::pair(StageRole::kPrefill, "prefill on "), std::pair(StageRole::kDecode, "decode on "),
        std::pair(StageRole::kBoth, "both on ")}) {
    const std::string nodes = NodesWithRole(plan, cluster, role);
    if (!nodes.empty()) parts.push_back(name + nodes);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The trials of DistServe's search say no latency.
std::string EstimateLine(const plan::GoodputEstimate& estimate) {
  const std::string latency =
      estimate.tpot_s > 0 ? fmt::format(" with a mean TTFT of {:.3g} s and TPOT of {:.3g} ms",
                                        estimate.ttft_s, 1e3 * estimate.tpot_s)
                          : "";
  return fmt::format("\nestimate: {:.3g} req/s{}, bound by {}\n", estimate.requests_per_s, latency,
                     Printable(estimate.limit));
}

std::string Line(const char* name, const plan::PlanCandidate* c, const ClusterSpec& cluster) {
  if (c == nullptr) return fmt::format("  {:<14} none keeps the limits\n", name);
  const std::string rate = c->score
                               ? fmt::format("{:.3g} req/s simulated", *c->score)
                               : fmt::format("{:.3g} req/s estimated", c->estimate.requests_per_s);
  return fmt::format("  {:<14} {}, bound by {}: {}\n", name, rate, Printable(c->estimate.limit),
                     RolesText(c->plan, cluster));
}

// What separation does to the rate: `a` with it, `b` without.
std::string GainText(double a, double b) {
  if (std::abs(a - b) <= kSame * std::max(a, b)) return "gains nothing";
  if (a <= 0) return "misses the limits at any rate";
  if (b <= 0) return "keeps the limits, which are missed without it";
  return a > b ? fmt::format("gains {:.0f} %", 100 * (a / b - 1))
               : fmt::format("loses {:.0f} %", 100 * (1 - a / b));
}

// Which of both won, and by how much. A simulation is compared with a simulation only. `roles`: the
// plan that was chosen has roles, so the verdict does not advise against them. `judged`: plans are
// simulated, as long as there is time.
std::string Verdict(const plan::PlanCandidate* with, const plan::PlanCandidate* without, bool roles,
                    bool judged) {
  if (with == nullptr) return "Do not separate prefill and decode: no plan that does was found.\n";
  if (without == nullptr) {
    return "Separate prefill and decode: only plans that do keep the limits.\n";
  }
  const bool simulated = with->score && without->score;
  const double a = simulated ? *with->score : with->estimate.requests_per_s;
  const double b = simulated ? *without->score : without->estimate.requests_per_s;
  const bool half = with->score.has_value() != without->score.has_value();
  if (half || (judged && !simulated)) {
    return fmt::format(
        "Whether to separate prefill and decode is not decided, because --time-limit ended the "
        "simulations; by the estimates it {}. Allow more time to decide it.\n",
        GainText(a, b));
  }
  if (!roles) return fmt::format("Do not separate prefill and decode: it {}.\n", GainText(a, b));
  return fmt::format("Separate prefill and decode: it {}.\n", GainText(a, b));
}

}  // namespace

const plan::PlanCandidate* GoodputAnswer::Best(bool roles) const {
  const auto found =
      std::ranges::find_if(ranked, [&](const plan::PlanCandidate& c) { return c.roles == roles; });
  return found == ranked.end() ? nullptr : &*found;
}

Result<GoodputAnswer> SearchGoodput(const PlanInputs& inputs, const GoodputSearchOptions& options) {
  plan::GoodputProblem problem = WithLimits(*inputs.goodput, options.limits);
  const Time begin = options.clock != nullptr ? options.clock->Now() : Time{};
  plan::RankOptions rank = plan::OptionsFor(problem.flow.num_nodes(), options.effort);
  rank.seed = options.seed;
  rank.clock = options.clock;
  if (options.clock != nullptr) rank.time_limit_s = options.time_limit_s;
  rank.progress = options.progress;
  rank.others = options.others;
  rank.colocated.route = [&](const plan::Placement& placement) {
    return FlowWithinTrunks(problem.flow, inputs.cluster, inputs.token_bytes, placement);
  };
  if (options.survive) problem.losable = LosableNodes(inputs.cluster);
  GoodputAnswer answer;
  auto ranked = RankPlans(
      problem, rank,
      options.survive && options.judge ? AfterWorstLosses(options.judge, problem) : options.judge);
  if (!ranked.ok() || ranked->front().estimate.requests_per_s < kRequestsPerSMin) {
    if (ranked.status().code() == StatusCode::kInvalidArgument) return ranked.status();
    plan::CandidateOptions search = rank.colocated;
    search.seed = options.seed;
    if (options.clock != nullptr) {
      const double left_s = options.time_limit_s - (options.clock->Now() - begin).seconds();
      search.clock = options.clock;
      search.time_limit_s = std::max(left_s, kAnswerShare * options.time_limit_s);
    }
    return NoPlanMeetsLimits(inputs, problem, search);
  }
  answer.ranked = std::move(*ranked);
  answer.bound = answer.best().plan.tokens_per_s_bound;
  return answer;
}

Result<GoodputAnswer> SearchCheapest(const PlanInputs& inputs, const GoodputSearchOptions& options,
                                     const std::vector<double>& usd_per_hour, double requests_per_s,
                                     std::function<Result<bool>(const Plan&)> keeps) {
  const plan::GoodputProblem problem = WithLimits(*inputs.goodput, options.limits);
  const Time begin = options.clock->Now();
  plan::CheapestGoodputOptions cheapest = plan::DefaultCheapestOptions();
  cheapest.first = plan::OptionsFor(problem.flow.num_nodes());
  cheapest.first.seed = cheapest.trial.seed = options.seed;
  cheapest.first.clock = options.clock;
  cheapest.first.time_limit_s = kCheapestFirst * options.time_limit_s;
  cheapest.first.progress = options.progress;
  cheapest.first.colocated.route =
      cheapest.trial.colocated.route = [&](const plan::Placement& placement) {
        return FlowWithinTrunks(problem.flow, inputs.cluster, inputs.token_bytes, placement);
      };
  cheapest.stop = [&] { return (options.clock->Now() - begin).seconds() >= options.time_limit_s; };
  const bool simulated = static_cast<bool>(keeps);
  cheapest.keeps = std::move(keeps);
  MR_ASSIGN_OR_RETURN(plan::PlanCandidate found,
                      CheapestGoodput(problem, usd_per_hour, requests_per_s, cheapest));
  if (simulated) found.score = requests_per_s;
  GoodputAnswer answer;
  answer.bound = found.plan.tokens_per_s_bound;
  answer.ranked.push_back(std::move(found));
  answer.cheapest = true;
  return answer;
}

plan::PlanOutcome OutcomeOf(const GoodputAnswer& answer) {
  plan::PlanOutcome outcome;
  outcome.plan = answer.best().plan;
  outcome.flow.tokens_per_s = outcome.plan.tokens_per_s;
  outcome.bound = answer.bound;
  outcome.bound_method = "time of all nodes divided between the phases";
  outcome.method = (answer.cheapest ? "cost: " : "goodput: ") + answer.best().method;
  return outcome;
}

std::string EstimateText(const PlanInputs& inputs, const plan::PlanOutcome& outcome) {
  const plan::GoodputProblem problem = WithLimits(*inputs.goodput, inputs.limits);
  return EstimateLine(EstimateAlong(problem, outcome.placement, outcome.flow.edges));
}

std::string GoodputText(const GoodputAnswer& answer, const GoodputSearchOptions& options,
                        const ClusterSpec& cluster) {
  const plan::PlanCandidate& best = answer.best();
  std::string out = EstimateLine(best.estimate);
  if (best.score && !options.limits.any()) {
    out += fmt::format("simulated: at most {:.3g} req/s answered\n", *best.score);
  } else if (best.score) {
    out += fmt::format(
        "simulated: {:.3g} req/s with {:.0f} % of the requests within the limits{}\n", *best.score,
        100 * options.limits.share(),
        *best.score > 0 ? "" : "; the estimate uses means, the simulation each request");
  }
  if (answer.cheapest) return out;
  if (options.survive) {
    out += fmt::format("all rates are those after the loss of any one {}node\n",
                       HasSpot(cluster) ? "spot " : "");
  }
  const plan::PlanCandidate *with = answer.Best(true), *without = answer.Best(false);
  out += "\n" + Line("with roles", with, cluster) + Line("without roles", without, cluster);
  return out + Verdict(with, without, best.roles, static_cast<bool>(options.judge));
}

Json GoodputJson(const GoodputAnswer& answer) {
  Json candidates = Json::array();
  for (const plan::PlanCandidate& c : answer.ranked) {
    candidates.push_back({{"method", c.method},
                          {"roles", c.roles},
                          {"single_machine", c.single_machine},
                          {"estimated_requests_per_s", c.estimate.requests_per_s},
                          {"limit", c.estimate.limit},
                          {"simulated_requests_per_s", c.score ? Json(*c.score) : Json()}});
  }
  return candidates;
}

}  // namespace millrace::apps
