// Candidates for the simulator: placements found by flow, then moved towards goodput.
#include <algorithm>
#include <cmath>

#include "plan/baselines.h"
#include "plan/flow_bounds.h"
#include "plan/flow_goodput.h"
#include "plan/layer_cover.h"
#include "plan/local_search.h"
#include "plan/planner.h"
#include "plan/search_moves.h"

namespace millrace::plan {
namespace {

Status ValidateGoodputProblem(const GoodputProblem& problem) {
  MR_RETURN_IF_ERROR(ValidateFlowProblem(problem.flow));
  const size_t n = problem.flow.nodes.size();
  if (problem.rates.size() != n || problem.kv_token_layers.size() != n ||
      problem.link_latency_s.size() != problem.flow.link_tokens_per_s.size()) {
    return InvalidArgument("rates, KV capacities or latencies are not those of this cluster");
  }
  for (size_t i = 0; i < n; ++i) {
    if (problem.kv_token_layers[i].size() < problem.flow.nodes[i].tokens_per_s.size()) {
      return InvalidArgument("no KV capacity for every number of layers of " +
                             problem.flow.nodes[i].name);
    }
  }
  if (!(problem.prompt_tokens > 0) || !(problem.output_tokens > 0)) {
    return InvalidArgument("requests need a prompt and an output, in mean tokens above zero");
  }
  return OkStatus();
}

class Ranking {
 public:
  Ranking(const GoodputProblem& problem, const CandidateOptions& options)
      : problem_(problem), options_(options) {}

  void Add(const char* method, const Placement& placement) {
    const auto known = [&](const Candidate& c) { return c.placement == placement; };
    if (std::any_of(all_.begin(), all_.end(), known)) return;
    Candidate c;
    c.placement = placement;
    c.flow = SolvePlacementFlow(problem_.flow, placement);
    c.method = method;
    c.estimate = EstimateAlong(problem_, placement, c.flow.edges);
    if (c.estimate.requests_per_s > 0) all_.push_back(std::move(c));
  }

  // Annealing on the estimate itself, from `start`.
  void SearchFrom(const Placement& start, uint64_t seed) {
    Rng rng(seed);
    MoveMaker maker(problem_.flow, rng);
    LayerCover cover(problem_.flow.num_layers);
    Placement now = start, best = start;
    double value = EstimateGoodput(problem_, now).requests_per_s, best_value = value;
    for (int64_t i = 0; i < options_.goodput_iterations; ++i) {
      const double cooled = 1 - static_cast<double>(i) / options_.goodput_iterations;
      const auto& moves = maker.Propose(now, cover);
      if (moves.empty()) continue;
      Placement next = now;
      for (const NodeMove& move : moves) next[move.node] = move.range;
      const double other = EstimateGoodput(problem_, next).requests_per_s;
      const double temperature = kHot * cooled * best_value;
      if (other < value && rng.Uniform() >= std::exp((other - value) / temperature)) continue;
      now = std::move(next);
      value = other;
      if (value > best_value) {
        best_value = value;
        best = now;
      }
    }
    Add("annealing on the goodput", best);
  }

  std::vector<Candidate> Sorted() {
    std::stable_sort(all_.begin(), all_.end(), [](const Candidate& a, const Candidate& b) {
      return a.estimate.requests_per_s > b.estimate.requests_per_s;
    });
    return all_;
  }

 private:
  static constexpr double kHot = 0.02;  // of the best, at the start

  const GoodputProblem& problem_;
  const CandidateOptions& options_;
  std::vector<Candidate> all_;
};

void AddConstructions(const FlowProblem& problem, uint64_t seed, Ranking& ranking) {
  if (const auto swarm = SwarmPlacement(problem)) ranking.Add("Swarm", *swarm);
  if (const auto sp = SeparatePipelines(problem)) ranking.Add("separate pipelines", *sp);
  ranking.Add("Petals", PetalsPlacement(problem, seed));
  const auto single = BestSingleNode(problem);
  if (!single) return;
  Placement alone(problem.num_nodes());
  alone[single->node] = {0, problem.num_layers};
  ranking.Add("single machine", alone);
}

}  // namespace

Result<std::vector<Candidate>> RankByGoodput(const GoodputProblem& problem,
                                             const CandidateOptions& options,
                                             const Evaluator& evaluator) {
  MR_RETURN_IF_ERROR(ValidateGoodputProblem(problem));
  PlanOptions by_flow;
  by_flow.seed = options.seed;
  by_flow.iterations = options.flow_iterations;
  by_flow.use_milp = false;
  MR_ASSIGN_OR_RETURN(const PlanOutcome outcome, PlanByFlow(problem.flow, by_flow));
  Ranking ranking(problem, options);
  ranking.Add("maximum flow", outcome.placement);
  AddConstructions(problem.flow, options.seed, ranking);
  // From the best of what is there, and from flows short of the optimum: less deep, often faster.
  for (int s = 0; s < options.searches; ++s) {
    const SearchBudget budget{.seed = options.seed + s,
                              .iterations = options.flow_iterations / (4 << (s % 3))};
    const SearchResult other = SearchFlow(problem.flow, Placement(problem.flow.num_nodes()),
                                          outcome.bound * (1 - 0.1 * (s + 1)), budget);
    ranking.Add("annealing on the flow", other.placement);
    const auto best = ranking.Sorted();
    if (best.empty()) continue;  // nothing keeps to the limits yet
    const auto& start = best[std::min<size_t>(s, best.size() - 1)].placement;
    ranking.SearchFrom(start, options.seed + s);
  }
  std::vector<Candidate> candidates = ranking.Sorted();
  if (candidates.empty()) return FailedPrecondition("no placement keeps to the limits at any rate");
  candidates.resize(std::min<size_t>(candidates.size(), options.top));
  if (!evaluator) return candidates;
  std::vector<Candidate> judged;
  for (Candidate& c : candidates) {
    const auto score = evaluator(MakePlan(problem.flow, c.placement, c.flow, outcome.bound));
    if (!score.ok()) continue;
    c.score = *score;
    judged.push_back(std::move(c));
  }
  if (judged.empty()) return FailedPrecondition("the evaluator refused every candidate");
  std::stable_sort(judged.begin(), judged.end(),
                   [](const Candidate& a, const Candidate& b) { return *a.score > *b.score; });
  return judged;
}

}  // namespace millrace::plan
