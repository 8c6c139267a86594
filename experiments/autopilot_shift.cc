// DistServe's replanning (section 4.3) with the server's autopilot: prompts grow threefold in the
// middle of a run. The share of good answers over time, against the plans that stay as they are,
// and the regret against the best of them in hindsight.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "experiments/list.h"
#include "experiments/pilot_runs.h"

namespace millrace::experiments {
namespace {

constexpr char kCluster[] = R"(name: eight-unlike
nodes:
  - {name: a, count: 2, device: a100-40gb, memory: 40 GB, price: 4.1 USD/h}
  - {name: v, count: 2, device: v100-32gb, memory: 32 GB, price: 3.9 USD/h}
  - {name: l, count: 4, device: l4, memory: 24 GB, price: 0.805 USD/h}
links:
  within_region: {bandwidth: 25 Gbit/s, latency: 0.1 ms}
server: {max_num_batched_tokens: 2048, max_num_seqs: 128}
)";
constexpr char kModel[] = "llama-13b";
constexpr double kShort = 512, kLong = 3 * kShort, kOutput = 200;
const LatencyLimits kShiftLimits = {.ttft_s = 3, .tpot_s = 0.12, .attainment = 0.9};
constexpr int kOthers = 2;  // further plans of each phase's search

sim::WorkloadSpec PhaseOf(double prompt, double rate, double seconds) {
  sim::WorkloadSpec spec;
  spec.rate = rate;
  spec.duration_s = seconds;
  spec.prompt = {
      .kind = sim::LengthSpec::Kind::kLognormal, .a = prompt, .b = prompt / 2, .limit = 8192};
  spec.output = {
      .kind = sim::LengthSpec::Kind::kLognormal, .a = kOutput, .b = kOutput / 2, .limit = 2048};
  return spec;
}

struct Static {
  std::string name;
  Plan plan;
  PilotRun run;
};

class Shift {
 public:
  Shift(const apps::SimulatedSearch& search, const Context& context)
      : search_(search), context_(context), phase_s_(context.quick ? 240 : 1200) {
    for (const NodeSpec& node : search.cluster().nodes) names_.push_back(node.name);
  }

  Result<std::vector<Figure>> Run() {
    MR_ASSIGN_OR_RETURN(const double rate, FindPlans());
    sim::WorkloadSpec workload;
    workload.phases = {PhaseOf(kShort, rate, phase_s_), PhaseOf(kLong, rate, phase_s_)};
    workload.rate = rate;
    workload.duration_s = 2 * phase_s_;
    workload.limits = kShiftLimits;
    setup_ = {.search = &search_, .workload = workload};
    for (Static& plan : plans_) {
      Tell(plan.name);
      MR_ASSIGN_OR_RETURN(plan.run, RunPilot(setup_, plan.plan, {}));
    }
    Tell("autopilot");
    MR_ASSIGN_OR_RETURN(
        pilot_, RunPilot(setup_, plans_.front().plan,
                         {.autopilot = cluster::AutopilotOptions{
                              .mode = cluster::AutopilotMode::kAct, .limits = kShiftLimits}}));
    return Figures(rate);
  }

 private:
  // The best plan of each phase first, then further ones. Returns the rate: what the best plan of
  // the second phase carries there, with the autopilot's headroom.
  Result<double> FindPlans() {
    std::set<std::string> shapes;
    double rate = 1e9;
    std::vector<std::pair<std::string, cluster::PlanForecast>> best, others;
    for (const double prompt : {kShort, kLong}) {
      const char* phase = prompt == kShort ? "short" : "long";
      Tell(fmt::format("plans for {} prompts", phase));
      const auto order = apps::OrderAtStart(PhaseOf(prompt, 1, 3600), 1);
      const cluster::SearchAnswer answer = search_.PlansFor(order, names_);
      MR_RETURN_IF_ERROR(answer.status);
      rate = std::min(rate, answer.found.front().requests_per_s);
      int more = 0;
      for (const cluster::PlanForecast& plan : answer.found) {
        if (&plan != &answer.found.front() &&
            (!shapes.insert(plan.shape).second || ++more > kOthers))
          continue;
        auto& list = &plan == &answer.found.front() ? best : others;
        list.emplace_back(fmt::format("{} for {} prompts",
                                      &plan == &answer.found.front() ? "best" : "another", phase),
                          plan);
        shapes.insert(plan.shape);
      }
    }
    for (auto* list : {&best, &others}) {
      for (const auto& [name, forecast] : *list) {
        plans_.push_back(
            {fmt::format("{} ({})", name, forecast.shape), search_.OnCluster(*forecast.plan), {}});
      }
    }
    return rate / cluster::AutopilotOptions().headroom;
  }

  void Tell(const std::string& what) const {
    if (context_.progress) fmt::print(stderr, "{}\n", what);
  }

  double Share(const PilotRun& run, int phase) const {
    return run.Between(phase * phase_s_, (phase + 1) * phase_s_, setup_.window_s).share();
  }

  Figure Row(const std::string& name, const PilotRun& run) const {
    Figure figure{.name = name, .ours = 100 * run.share(), .unit = "% good answers"};
    figure.verdict = fmt::format("{:.1f} % with short prompts, {:.1f} % with long ones",
                                 100 * Share(run, 0), 100 * Share(run, 1));
    Json minutes = Json::array();
    for (const PilotRun::Window& window : run.windows) minutes.push_back(window.share());
    figure.more = {
        {"share_by_minute", minutes}, {"requests", run.requests}, {"refused", run.refused}};
    return figure;
  }

  std::vector<Figure> Figures(double rate) const {
    std::vector<Figure> figures;
    figures.push_back({.name = "load", .ours = rate, .unit = "requests/s"});
    for (const Static& plan : plans_) figures.push_back(Row(plan.name, plan.run));
    Figure ours = Row("autopilot", pilot_);
    for (const cluster::Decision& decision : pilot_.decisions) {
      ours.more["decisions"].push_back(cluster::DecisionLine(decision));
    }
    figures.push_back(std::move(ours));

    const auto best =
        std::ranges::max_element(plans_, {}, [](const Static& s) { return s.run.good; });
    double of_phases = 0;
    for (const int phase : {0, 1}) {
      uint64_t most = 0;
      for (const Static& plan : plans_) {
        most = std::max(
            most, plan.run.Between(phase * phase_s_, (phase + 1) * phase_s_, setup_.window_s).good);
      }
      of_phases += static_cast<double>(most);
    }
    const auto regret = [&](const char* name, double good, double most, std::string what) {
      const double share =
          100 * (good - static_cast<double>(pilot_.good)) / static_cast<double>(pilot_.requests);
      return Figure{.name = name,
                    .ours = share,
                    .unit = "% of the requests",
                    .verdict = std::move(what),
                    .held = share <= most};
    };
    figures.push_back(regret("regret against the best plan in hindsight",
                             static_cast<double>(best->run.good), 5, best->name));
    figures.push_back(regret("regret against the best plan of each phase", of_phases,
                             context_.quick ? 25 : 10, "which no plan can reach that stays"));
    figures.push_back(Figure{.name = "changes of the plan",
                             .ours = pilot_.changes,
                             .unit = "",
                             .verdict = fmt::format("{} searches", pilot_.searches)});
    return figures;
  }

  const apps::SimulatedSearch& search_;
  const Context& context_;
  const double phase_s_;
  std::vector<std::string> names_;
  PilotSetup setup_;
  std::vector<Static> plans_;
  PilotRun pilot_;
};

Result<std::vector<Figure>> RunShift(const Context& context) {
  apps::PlanInputFlags flags;
  flags.live = kModel;
  flags.live_text = kCluster;
  flags.model = kModel;
  MR_ASSIGN_OR_RETURN(
      const apps::SimulatedSearch search,
      apps::SimulatedSearch::Load(std::move(flags),
                                  {.limits = kShiftLimits, .effort = context.quick ? 0.2 : 1}));
  return Shift(search, context).Run();
}

}  // namespace

Experiment AutopilotShiftExperiment() {
  return {
      .name = "autopilot_shift",
      .title = "Autopilot: prompts grow threefold in the middle of a run (DistServe section 4.3)",
      .needs_data = false,
      .quick = true,
      .run = RunShift};
}

}  // namespace millrace::experiments
