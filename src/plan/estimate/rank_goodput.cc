// Finds candidates for the simulator: placements by flow, then moved towards goodput by either
// estimate. All of it stays within a time limit.
#include <algorithm>
#include <cmath>

#include "plan/estimate/flow_goodput.h"
#include "plan/estimate/rounds_goodput.h"
#include "plan/flow/baselines.h"
#include "plan/flow/flow_bounds.h"
#include "plan/flow/layer_cover.h"
#include "plan/flow/local_search.h"
#include "plan/flow/planner.h"
#include "plan/flow/search_moves.h"

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

constexpr char kSingle[] = "single machine";
// Fraction of the time limit for the maximum flow.
constexpr double kByFlow = 0.4;

// The used fraction of the time limit. Without a limit it never reaches the end.
class Deadline {
 public:
  explicit Deadline(const CandidateOptions& options)
      : clock_(options.clock), limit_s_(options.time_limit_s) {
    if (clock_ != nullptr) start_ = clock_->Now();
  }
  double elapsed_s() const { return clock_ == nullptr ? 0 : (clock_->Now() - start_).seconds(); }
  bool Past(double share) const { return timed() && elapsed_s() >= share * *limit_s_; }
  std::optional<double> SecondsUntil(double share) const {
    if (!timed()) return std::nullopt;
    return std::max(0.0, share * *limit_s_ - elapsed_s());
  }

 private:
  bool timed() const { return clock_ != nullptr && limit_s_.has_value(); }

  const Clock* clock_;
  const std::optional<double> limit_s_;
  Time start_;
};

class Ranking {
 public:
  Ranking(const GoodputProblem& problem, const CandidateOptions& options, const Deadline& deadline)
      : problem_(problem), options_(options), deadline_(deadline), whole_(problem.flow) {
    whole_.partial_inference = false;
    rounds_ = RoundsOf(problem);
    rounds_.flow = &whole_;
  }

  bool OutOfTime() const { return deadline_.Past(1); }
  std::function<bool()> Stop() const {
    return [this, asked = 0]() mutable { return ++asked % 16 == 0 && OutOfTime(); };
  }

  void Add(const char* method, const Placement& placement) {
    const auto known = [&](const Candidate& c) { return c.placement == placement; };
    if (std::any_of(all_.begin(), all_.end(), known)) return;
    Candidate c;
    c.placement = placement;
    c.flow = SolvePlacementFlow(problem_.flow, placement);
    c.method = method;
    c.estimate = EstimateGoodput(problem_, placement);
    if (c.estimate.requests_per_s > 0) all_.push_back(std::move(c));
    if (!options_.progress || all_.empty()) return;
    options_.progress({method, Sorted().front().estimate.requests_per_s, deadline_.elapsed_s()});
  }

  // Annealing on the estimate itself, from `start`.
  void SearchFrom(const Placement& start, uint64_t seed) {
    Rng rng(seed);
    MoveMaker maker(problem_.flow, rng);
    LayerCover cover(problem_.flow.num_layers);
    Placement now = start, best = start;
    double value = EstimateGoodput(problem_, now).requests_per_s, best_value = value;
    const auto stop = Stop();
    for (int64_t i = 0; i < options_.goodput_iterations && !stop(); ++i) {
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

  // The same on the slower estimate, from its `nth` best candidate.
  void SearchRoundsFrom(size_t nth, uint64_t seed) {
    std::vector<std::pair<double, const Placement*>> starts;
    for (const Candidate& c : all_) {
      const double rate = EstimateRounds(rounds_, c.placement).requests_per_s;
      if (rate > 0) starts.emplace_back(rate, &c.placement);
    }
    if (starts.empty()) return;  // all rely on partial inference or miss a limit
    std::stable_sort(starts.begin(), starts.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    const Placement start = *starts[std::min(nth, starts.size() - 1)].second;
    Add("annealing on the queues",
        SearchRounds(rounds_, start, options_.rounds_iterations, seed, Stop()));
  }

  std::vector<Candidate> Sorted() const {
    std::vector<Candidate> sorted = all_;
    std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate& a, const Candidate& b) {
      return a.estimate.requests_per_s > b.estimate.requests_per_s;
    });
    return sorted;
  }

  // A single machine, the best by the fast estimate, the best of each method by the other, and then
  // the next by either in turn.
  std::vector<Candidate> Top() const {
    const std::vector<Candidate> by_estimate = Sorted();
    std::vector<Candidate> by_rounds = by_estimate;
    OrderForJudging(by_rounds);
    std::vector<Candidate> top;
    const auto take = [&](const Candidate& c) {
      const auto same = [&](const Candidate& other) { return other.placement == c.placement; };
      const bool room = std::ssize(top) < options_.top;
      if (room && std::none_of(top.begin(), top.end(), same)) top.push_back(c);
    };
    for (const Candidate& c : by_estimate) {
      if (c.method == kSingle) take(c);
    }
    if (!by_estimate.empty()) take(by_estimate.front());
    std::vector<std::string> methods;
    for (const Candidate& c : by_rounds) {
      if (std::find(methods.begin(), methods.end(), c.method) != methods.end()) continue;
      methods.push_back(c.method);
      take(c);
    }
    for (size_t i = 0; i < by_estimate.size(); ++i) {
      take(by_estimate[i]);
      take(by_rounds[i]);
    }
    std::stable_sort(top.begin(), top.end(), [](const Candidate& a, const Candidate& b) {
      return a.estimate.requests_per_s > b.estimate.requests_per_s;
    });
    return top;
  }

  // The single machine comes first, so that no worse plan is chosen. Then the best of each method
  // by the estimate that is closer to the simulator: methods differ more from each other than the
  // plans of one method, and the time may not suffice for all.
  void OrderForJudging(std::vector<Candidate>& candidates) const {
    SortByRounds(candidates);
    const auto rest = std::stable_partition(candidates.begin(), candidates.end(),
                                            [](const Candidate& c) { return c.method == kSingle; });
    std::vector<std::string> seen;
    std::stable_partition(rest, candidates.end(), [&seen](const Candidate& c) {
      if (std::find(seen.begin(), seen.end(), c.method) != seen.end()) return false;
      seen.push_back(c.method);
      return true;
    });
  }

 private:
  void SortByRounds(std::vector<Candidate>& candidates) const {
    std::vector<std::pair<double, Candidate>> rated;
    for (Candidate& c : candidates) {
      const double rate = EstimateRounds(rounds_, c.placement).requests_per_s;
      rated.emplace_back(rate, std::move(c));
    }
    std::stable_sort(rated.begin(), rated.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t i = 0; i < rated.size(); ++i) candidates[i] = std::move(rated[i].second);
  }

  static constexpr double kHot = 0.02;  // relative to the best, at the start

  const GoodputProblem& problem_;
  const CandidateOptions& options_;
  const Deadline& deadline_;
  FlowProblem whole_;  // without partial inference
  RoundsProblem rounds_;
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
  ranking.Add(kSingle, alone);
}

}  // namespace

Result<std::vector<Candidate>> RankByGoodput(const GoodputProblem& problem,
                                             const CandidateOptions& options) {
  MR_RETURN_IF_ERROR(ValidateGoodputProblem(problem));
  const Deadline deadline(options);
  PlanOptions by_flow;
  by_flow.seed = options.seed;
  by_flow.iterations = options.flow_iterations;
  by_flow.use_milp = false;
  by_flow.clock = options.clock;
  by_flow.time_limit_s = deadline.SecondsUntil(kByFlow);
  MR_ASSIGN_OR_RETURN(const PlanOutcome outcome, PlanByFlow(problem.flow, by_flow));
  Ranking ranking(problem, options, deadline);
  ranking.Add("maximum flow", outcome.placement);
  AddConstructions(problem.flow, options.seed, ranking);
  // Starts from the best candidates and from flows below the optimum: less deep, often faster.
  for (int s = 0; s < options.searches && !ranking.OutOfTime(); ++s) {
    const SearchBudget budget{.seed = options.seed + s,
                              .iterations = options.flow_iterations / (4 << (s % 3)),
                              .out_of_time = [&ranking] { return ranking.OutOfTime(); }};
    const SearchResult other = SearchFlow(problem.flow, Placement(problem.flow.num_nodes()),
                                          outcome.bound * (1 - 0.1 * (s + 1)), budget);
    ranking.Add("annealing on the flow", other.placement);
    const auto best = ranking.Sorted();
    if (best.empty()) continue;  // no candidate meets the limits yet
    const auto& start = best[std::min<size_t>(s, best.size() - 1)].placement;
    ranking.SearchFrom(start, options.seed + s);
    ranking.SearchRoundsFrom(static_cast<size_t>(s) / 2, options.seed + s);
  }
  std::vector<Candidate> candidates = ranking.Top();
  if (candidates.empty()) return FailedPrecondition("no placement keeps to the limits at any rate");
  for (Candidate& c : candidates) {
    if (!options.route) break;
    c.flow = options.route(c.placement);
    if (problem.losable.empty()) c.estimate = EstimateAlong(problem, c.placement, c.flow.edges);
  }
  ranking.OrderForJudging(candidates);
  return candidates;
}

}  // namespace millrace::plan
