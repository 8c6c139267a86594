// Compares DistServe's placements (OSDI'24, appendix B) and search time (figure 12) with our
// search.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>

#include "experiments/distserve_artifact.h"
#include "experiments/distserve_confirm.h"
#include "experiments/distserve_model.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

using plan::DistServeUnit;

// The paper's placements (appendix B). ShareGPT's lengths are not published; 100 of them are known
// from a measured run of the artifact.
const DistServeUnit kPaper13b{.prefill = {2, 1}, .decode = {1, 1}};
const DistServeUnit kPaper66b{.prefill = {4, 1}, .decode = {2, 2}};

struct Case {
  DistserveModel model;
  LengthSample sample;
  DistServeUnit paper;
};

std::vector<Case> Cases(bool quick) {
  std::vector<Case> cases;
  for (const auto sample :
       {LengthSample::kShareGptMeasured, LengthSample::kShareGptMeans, LengthSample::kAzure}) {
    cases.push_back({Opt66b(), sample, kPaper66b});
    if (quick) break;
    cases.push_back({Opt13b(), sample, kPaper13b});
  }
  return cases;
}

std::string Short(const DistServeUnit& unit) {
  return fmt::format("prefill TP{} PP{} + decode TP{} PP{}", unit.prefill.tensor,
                     unit.prefill.pipeline, unit.decode.tensor, unit.decode.pipeline);
}

// Measures processor time, so that other load on the machine does not count.
class Stopwatch {
 public:
  double Seconds() const {
    return static_cast<double>(std::clock() - start_) / static_cast<double>(CLOCKS_PER_SEC);
  }

 private:
  std::clock_t start_ = std::clock();
};

// The artifact's own search: its simulator, its rule, one node.
struct ArtifactCase {
  const char* name;
  DistserveModel model;
  int devices = 0;
  double ttft_ms = 0, tpot_ms = 0;
  DistServeUnit paper;
  std::optional<double> paper_per_gpu;
};

Result<Figure> ArtifactFigure(const Context& context, const ArtifactCase& c) {
  MR_ASSIGN_OR_RETURN(const auto engine, DistserveEngine::Load(context.data, "distserve", c.model));
  MR_ASSIGN_OR_RETURN(const auto lengths, SampleLengths(context, LengthSample::kShareGptMeasured));
  const ArtifactRule rule{
      .engine = &engine, .lengths = &lengths, .ttft_ms = c.ttft_ms, .tpot_ms = c.tpot_ms};
  const auto goodput = [&](const DistServeUnit& unit, int, double guess) {
    return ArtifactGoodput(rule, unit, guess);
  };
  const plan::DistServeProblem problem{
      .nodes = 1, .devices_per_node = c.devices, .parallels = engine.Parallels(1, c.devices)};
  MR_ASSIGN_OR_RETURN(const auto found, plan::Algorithm2(problem, {.goodput = goodput}));
  const double ours = goodput(found.unit, 1, 1).requests_per_s / found.unit.devices();
  const double papers = goodput(c.paper, 1, 1).requests_per_s / c.paper.devices();
  Figure figure{
      .name = fmt::format("{}, artifact's simulator and rule, 100 ShareGPT requests", c.name),
      .paper = Short(c.paper),
      .ours = Short(found.unit)};
  if (c.paper_per_gpu) {
    figure.paper = fmt::format("{} at {} requests/s per GPU", Short(c.paper), *c.paper_per_gpu);
    figure.ours = fmt::format("{} at {:.2f}", Short(found.unit), ours);
  }
  figure.verdict = found.unit == c.paper
                       ? "reproduced (the same plan)"
                       : fmt::format("another plan wins: {:.3f} requests/s per GPU against {:.3f}",
                                     ours, papers);
  figure.more = {{"requests_per_s_per_gpu", ours}};
  return figure;
}

Figure PublishedFigure(const Case& c, const std::string& name, sim::PlacementEvaluator& evaluator,
                       const plan::DistServeProblem& problem) {
  const Stopwatch watch;
  const auto found = plan::Algorithm2(problem, evaluator.Callbacks());
  const double seconds = watch.Seconds();
  Figure figure{.name = name + ": Algorithm 2, joint attainment, KV limits",
                .paper = Short(c.paper)};
  if (!found.ok()) {
    figure.ours = "none";
    figure.verdict = "not reproduced: " + found.status().message();
    return figure;
  }
  const auto& unit = found->unit;
  figure.ours = Short(unit);
  const double ours = evaluator.FindGoodput(unit, 1, 1).requests_per_s / unit.devices();
  const double papers = evaluator.FindGoodput(c.paper, 1, 1).requests_per_s / c.paper.devices();
  figure.verdict = unit == c.paper
                       ? "reproduced"
                       : fmt::format(
                             "another plan wins on these lengths: {:.3f} requests/s per GPU, the "
                             "paper's plan has {:.3f}",
                             ours, papers);
  figure.more = {{"requests_per_s_per_gpu", ours},
                 {"papers_plan_requests_per_s_per_gpu", papers},
                 {"seconds", seconds}};
  return figure;
}

// Runs the best of each mode at its trial rate through the production scheduler.
std::vector<Figure> ConfirmFigures(const std::string& name, sim::PlacementEvaluator& evaluator,
                                   const plan::DistServePlan& plan) {
  std::vector<plan::DistServeCandidate> firsts = {plan.best};
  for (const auto& other : plan.others) {
    const bool shown = std::any_of(firsts.begin(), firsts.end(),
                                   [&](const auto& c) { return c.unit.mode == other.unit.mode; });
    if (!shown && other.evaluated && other.requests_per_s > 0) firsts.push_back(other);
  }
  std::vector<Figure> figures;
  for (const auto& c : firsts) {
    Figure figure{.name = fmt::format("{}: {} in the real simulator at {:.4g} requests/s", name,
                                      plan::ServingModeName(c.unit.mode), c.requests_per_s),
                  .unit = "% within both limits"};
    const auto met = ConfirmPlacement(evaluator, c.unit, c.units, c.requests_per_s, 1);
    if (!met.ok()) {
      figure.ours = "none";
      figure.verdict = met.status().message();
    } else {
      figure.ours = 100 * met->both;
      const auto trial = evaluator.Attain(c.unit, c.units, c.requests_per_s, 1);
      figure.verdict = fmt::format(
          "the trial of the same requests says {:.1f}; TTFT {:.1f}, TPOT {:.1f} alone; {} of [{}]",
          100 * trial.both, 100 * met->ttft, 100 * met->tpot, c.units, c.unit.ToString());
    }
    figures.push_back(std::move(figure));
  }
  return figures;
}

std::vector<Figure> OurFigures(const std::string& name, sim::PlacementEvaluator& evaluator,
                               const plan::DistServeProblem& problem) {
  const Stopwatch watch;
  const auto plan = plan::SearchDistServe(problem, evaluator.Callbacks());
  const double seconds = watch.Seconds();
  Figure figure{.name = name + ": ours, 32 GPUs, any mode", .unit = "requests/s"};
  if (!plan.ok()) {
    figure.ours = "none";
    figure.verdict = plan.status().message();
    return {figure};
  }
  const auto& best = plan->best;
  figure.ours = best.requests_per_s;
  figure.verdict =
      fmt::format("{} of [{}], +- {:.2g} requests/s; {} candidates, {} run", best.units,
                  best.unit.ToString(), best.half_width, plan->candidates, plan->evaluations);
  Json others = Json::array();
  for (const auto& other : plan->others) {
    others.push_back({{"plan", fmt::format("{} of [{}]", other.units, other.unit.ToString())},
                      {"why_lost", other.why_lost}});
  }
  figure.more = {{"others", std::move(others)}, {"trials", evaluator.trials()}};
  Figure time{.name = name + ": search time",
              .paper = "80 s on 96 cores (figure 12, 32 GPUs)",
              .ours = seconds,
              .unit = "CPU s, one core",
              .verdict = seconds < 10 ? "reproduced: under 10 s" : "not reproduced: over 10 s"};
  std::vector<Figure> figures = {std::move(figure), std::move(time)};
  for (Figure& confirmed : ConfirmFigures(name, evaluator, *plan)) {
    figures.push_back(std::move(confirmed));
  }
  return figures;
}

Result<std::vector<Figure>> RunSearch(const Context& context) {
  std::vector<Figure> figures;
  for (const ArtifactCase& c :
       {ArtifactCase{"opt-13b on 4 GPUs (README run)", Opt13b(), 4, 200, 100, kPaper13b, 1.56},
        ArtifactCase{"opt-13b on 8 GPUs", Opt13b(), 8, 250, 100, kPaper13b, {}},
        ArtifactCase{"opt-66b on 8 GPUs", Opt66b(), 8, 2500, 150, kPaper66b, {}}}) {
    MR_ASSIGN_OR_RETURN(auto figure, ArtifactFigure(context, c));
    figures.push_back(std::move(figure));
    if (context.quick) break;
  }
  for (const Case& c : Cases(context.quick)) {
    MR_ASSIGN_OR_RETURN(const auto engine,
                        DistserveEngine::Load(context.data, "distserve", c.model));
    MR_ASSIGN_OR_RETURN(const auto lengths, SampleLengths(context, c.sample));
    const auto kind_of = [&](const plan::Parallel& p) { return engine.KindOf(p); };
    const auto problem = TestbedProblem(c.model, engine, lengths);
    const std::string name = fmt::format("{}, {}", c.model.name, LengthSampleName(c.sample));
    sim::PlacementEvaluator published(TestbedOptions(c.model, lengths), kind_of);
    figures.push_back(PublishedFigure(c, name, published, problem));
    sim::PlacementEvaluator ours(TestbedOptions(c.model, lengths), kind_of);
    for (Figure& figure : OurFigures(name, ours, problem)) figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace

Experiment DistserveSearchExperiment() {
  return {.name = "distserve_search",
          .title =
              "DistServe: placements on 4 x 8 A100-80G and the time to find them "
              "(OSDI'24, appendix B, figure 12)",
          .quick = true,
          .run = RunSearch};
}

}  // namespace millrace::experiments
