// Helix's four clusters: our planner portfolio under a time limit against the flows of Helix's
// published placements, with bound and gap.
#include <fmt/format.h>

#include <cstdio>

#include "experiments/helix_data.h"
#include "experiments/list.h"
#include "plan/flow/check.h"
#include "plan/flow/flow_from_helix.h"
#include "plan/flow/planner.h"

namespace millrace::experiments {
namespace {

constexpr double kTimeLimitS = 50;  // per row; the bars allow 60
constexpr int64_t kQuickIterations = 300'000;

struct Row {
  const char* cluster;
  bool partial;
  double shipped;  // by Helix's solver
  double bar;      // required flow
  double quick;    // required flow with kQuickIterations
};
constexpr Row kRows[] = {
    {"single24", true, 1289.556, 2045, 2045},  {"single24", false, 1289.556, 2045, 2045},
    {"dist24", true, 1212.177, 1476, 640},     {"dist24", false, 1212.177, 1476, 640},
    {"hetero42", true, 4892.242, 5813, 5200},  {"hetero42", false, 4892.242, 5441, 5441},
    {"quality10", true, 286.587, 286.58, 286}, {"quality10", false, 286.587, 286.58, 286},
};

void ShowProgress(const std::string& name, const plan::PlanProgress& progress) {
  fmt::print(stderr, "\r{}: {:.1f} s, {:.3f} tok/s, bound {:.3f}, gap {:.2f} %, {}        ", name,
             progress.elapsed_s, progress.tokens_per_s, progress.bound, 100 * progress.gap(),
             progress.method);
}

Json Methods(const plan::PlanOutcome& outcome) {
  Json methods = Json::object();
  for (const auto& m : outcome.methods) methods[m.method] = m.tokens_per_s;
  return methods;
}

Result<Figure> RunRow(const Context& context, const Row& row, const Clock& clock) {
  MR_ASSIGN_OR_RETURN(const auto capacity, LoadHelixCapacity(context.data, row.cluster));
  const plan::FlowProblem problem = plan::FlowFromHelix(capacity, row.partial);
  const std::string name =
      fmt::format("{}, {}", row.cluster, row.partial ? "partial" : "no partial");
  plan::PlanOptions options;
  if (context.quick) {
    options.iterations = kQuickIterations;
    options.use_milp = false;
  } else {
    options.iterations = int64_t{1} << 40;  // only the clock limits the search
    options.clock = &clock;
    options.time_limit_s = kTimeLimitS;
  }
  if (context.progress) {
    options.progress = [&](const plan::PlanProgress& p) { ShowProgress(name, p); };
  }
  MR_ASSIGN_OR_RETURN(const plan::PlanOutcome outcome, plan::PlanByFlow(problem, options));
  if (context.progress) fmt::print(stderr, "\n");
  const double ours = outcome.flow.tokens_per_s, bar = context.quick ? row.quick : row.bar;
  const double checked = plan::RecomputeFlow(problem, outcome.plan);
  return Figure{.name = name,
                .paper = row.shipped,
                .ours = ours,
                .unit = "tok/s",
                .verdict = fmt::format("{} the bar of {}; bound {:.3f} ({}), gap {:.2f} %{}",
                                       ours >= bar ? "reaches" : "misses", bar, outcome.bound,
                                       outcome.bound_method, 100 * outcome.gap(),
                                       outcome.proved_optimal() ? ", proved optimal" : ""),
                .more = {{"bound", outcome.bound},
                         {"gap", outcome.gap()},
                         {"checker", checked},
                         {"found_by", outcome.method},
                         {"methods", Methods(outcome)},
                         {"unused_nodes", outcome.plan.unused.size()},
                         {"iterations", outcome.iterations},
                         {"seconds", outcome.elapsed_s}},
                .held = ours >= bar};
}

Result<std::vector<Figure>> Run(const Context& context) {
  const SteadyClock clock;
  std::vector<Figure> figures;
  for (const Row& row : kRows) {
    MR_ASSIGN_OR_RETURN(Figure figure, RunRow(context, row, clock));
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace

Experiment HelixContestExperiment() {
  return {.name = "helix_contest",
          .title =
              "Helix: planner contest on four clusters (section 6), one thread, at most 50 s a row",
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
