#include "plan/flow/restarts.h"

#include <algorithm>
#include <numeric>

#include "plan/flow/baselines.h"
#include "plan/flow/flow_bounds.h"
#include "plan/flow/local_search.h"

namespace millrace::plan {
namespace {

constexpr int kPetalsOrders = 8;
constexpr int64_t kRestartIterations = 4'000'000;
constexpr int64_t kFirstRestartPerNode = 2'000;  // each later restart doubles it

// Orders regions one after another, and the nodes of each by index, so that a chain crosses between
// regions as rarely as possible. Begins with the region of rank `first`.
std::vector<int> RegionOrder(const FlowProblem& problem, int first) {
  std::vector<std::string> regions;
  for (const FlowNode& node : problem.nodes) regions.push_back(node.region);
  std::sort(regions.begin(), regions.end());
  regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
  const int count = static_cast<int>(regions.size());
  const auto rank = [&](int i) {
    const auto it = std::find(regions.begin(), regions.end(), problem.nodes[i].region);
    return (static_cast<int>(it - regions.begin()) + count - first % count) % count;
  };
  std::vector<int> order(problem.num_nodes());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) < rank(b); });
  return order;
}

int CountRegions(const FlowProblem& problem) {
  std::vector<std::string> regions;
  for (const FlowNode& node : problem.nodes) regions.push_back(node.region);
  std::sort(regions.begin(), regions.end());
  return static_cast<int>(std::unique(regions.begin(), regions.end()) - regions.begin());
}

// How restart number r differs from the others.
struct Flavour {
  bool from_incumbent = false;
  double hot = 1;
  double raise = 1.05;
};

// Small problems need many short restarts, large ones need long ones.
int64_t IterationsOf(int restart, int nodes) {
  constexpr int kDoublings = 10;
  const int64_t first = kFirstRestartPerNode * nodes;
  return std::min(kRestartIterations, first << std::min(restart, kDoublings));
}

Flavour FlavourOf(int restart) {
  // Distant targets find other structures, near ones refine; every fourth restart continues from
  // the incumbent.
  static constexpr double kRaises[] = {1.05, 1.08, 1.03, 1.02, 1.12};
  Flavour flavour;
  flavour.raise = kRaises[restart % 5];
  if (restart % 4 == 3) {
    flavour.from_incumbent = true;
    flavour.hot = 0.3;
    flavour.raise = restart % 8 == 3 ? 1.005 : 1.02;
  }
  return flavour;
}

}  // namespace

void TryConstructions(Portfolio& portfolio) {
  const FlowProblem& problem = portfolio.problem();
  if (const auto single = BestSingleNode(problem)) {
    Placement placement(problem.num_nodes());
    placement[single->node] = {0, problem.num_layers};
    portfolio.Offer("single machine", placement);
  }
  const double threshold = ChainThreshold(problem);
  for (int first = 0; first < CountRegions(problem); ++first) {
    const auto chain = ChainPlacement(problem, threshold, RegionOrder(problem, first));
    if (chain) portfolio.Offer("chain threshold", *chain);
  }
  if (const auto swarm = SwarmPlacement(problem)) portfolio.Offer("Swarm", *swarm);
  for (int order = 0; order < kPetalsOrders; ++order) {
    portfolio.Offer("Petals", PetalsPlacement(problem, portfolio.options().seed + order));
  }
  if (const auto sp = SeparatePipelines(problem)) portfolio.Offer("separate pipelines", *sp);
}

void RunRestarts(Portfolio& portfolio, int restarts, std::optional<double> seconds) {
  const FlowProblem& problem = portfolio.problem();
  const PlanOptions& options = portfolio.options();
  const bool cover = problem.partial_inference && LinksAreSlack(problem, portfolio.bound());
  const char* name = cover ? "annealing on the cover" : "annealing on the flow";
  const double stop_below = seconds ? portfolio.SecondsLeft().value_or(0) - *seconds : 0;
  const auto out_of_time = [&] {
    const auto left = portfolio.SecondsLeft();
    return left && *left <= std::max(stop_below, 0.0);
  };
  // A later call continues where the last one stopped.
  int64_t left = options.iterations - portfolio.iterations();
  for (; restarts > 0 && left > 0 && !portfolio.Proved() && !out_of_time(); --restarts) {
    const int r = portfolio.NextRestart();
    const Flavour flavour = FlavourOf(r);
    SearchBudget budget;
    budget.seed = options.seed + static_cast<uint64_t>(r) * 0x9e37;
    budget.iterations = std::min(left, IterationsOf(r, problem.num_nodes()));
    budget.hot = flavour.hot;
    budget.raise = flavour.raise;
    budget.out_of_time = out_of_time;
    const Placement start =
        flavour.from_incumbent ? portfolio.placement() : Placement(problem.num_nodes());
    const auto search = cover ? SearchCover : SearchFlow;
    const SearchResult result = search(problem, start, portfolio.bound(), budget);
    portfolio.CountIterations(result.iterations);
    portfolio.Offer(name, result.placement);
    left -= budget.iterations;
  }
}

}  // namespace millrace::plan
