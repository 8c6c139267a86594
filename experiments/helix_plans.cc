// Helix (ASPLOS'25): compares our plans with the published ones on the same three clusters, model,
// load and scheduler, in steady state, by the imitation of its simulator. Candidates come from a
// search for goodput (helix_goodput.h) that starts from the flow planner's plan and from the
// published one; the simulator ranks them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/file.h"
#include "experiments/helix_data.h"
#include "experiments/helix_goodput.h"
#include "experiments/helix_runs.h"
#include "experiments/list.h"
#include "plan/flow/flow_from_helix.h"
#include "plan/flow/planner.h"
#include "plan/io/helix_files.h"

namespace millrace::experiments {
namespace {

constexpr const char* kModel = "llama2_70b";
constexpr double kNicBytesPerS = 1e10;  // machine_profiles.ini: the same for all
constexpr int kThreads = 2;
constexpr int kSeeds = 3;  // per start
constexpr int64_t kProposals = 40'000;
constexpr int64_t kFlowProposals = 3'000'000;
constexpr double kRankS = 300;     // warm-up, and window, of ranking runs
constexpr double kSteadyS = 1500;  // of the final runs
constexpr size_t kFinalists = 2;

struct Setup {
  std::string name;
  ClusterSpec spec;
  plan::FlowProblem problem;
  plan::Placement shipped;
};

struct Candidate {
  std::string method;
  plan::Placement placement;
  helix::HelixReport report;
};

Result<Setup> LoadSetup(const std::string& data, const std::string& name) {
  Setup setup{.name = name};
  const std::string file = data + "/helix/clusters/" + name + ".ini";
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kHelixFileBytesMax));
  MR_ASSIGN_OR_RETURN(setup.spec, plan::ParseHelixCluster(text, file));
  MR_ASSIGN_OR_RETURN(const auto capacity, LoadHelixCapacity(data, name));
  setup.problem = plan::FlowFromHelix(capacity, /*partial_inference=*/false);
  MR_ASSIGN_OR_RETURN(setup.shipped, LoadHelixPlacement(data, name + "/" + kModel + "/helix.ini"));
  return setup;
}

// The nodes and links with flow, in the form of the original's simulator.
helix::HelixCluster ClusterOf(const helix::HelixModel& model, const Setup& setup,
                              const plan::Placement& placement) {
  const plan::PlacementFlow flow = plan::SolvePlacementFlow(setup.problem, placement);
  helix::HelixCluster cluster;
  cluster.nic_in_bytes_per_s = cluster.nic_out_bytes_per_s = kNicBytesPerS;
  std::vector<int> number(placement.size() + 1, 0);
  for (size_t i = 0; i < placement.size(); ++i) {
    if (flow.node_tokens_per_s[i] < plan::kFlowMin) continue;
    number[i] = cluster.coordinator();
    const plan::FlowNode& node = setup.problem.nodes[i];
    const int64_t kv = model.gpus.at(node.kind).LimitsOf(placement[i].size()).kv_entries;
    cluster.nodes.push_back({.name = node.name,
                             .gpu = node.kind,
                             .layers = placement[i],
                             .kv_entries = kv,
                             .nic_in_bytes_per_s = kNicBytesPerS,
                             .nic_out_bytes_per_s = kNicBytesPerS});
  }
  number.back() = cluster.coordinator();
  const auto end = static_cast<int>(placement.size());
  for (const plan::FlowEdge& edge : flow.edges) {
    const int from = edge.from.value_or(end), to = edge.to.value_or(end);
    for (const LinkSpec& link : setup.spec.links) {
      if (link.from != from || link.to != to) continue;
      cluster.links.push_back({.from = number[static_cast<size_t>(from)],
                               .to = number[static_cast<size_t>(to)],
                               .latency_s = link.latency.seconds(),
                               .bytes_per_s = link.bytes_per_s,
                               .flow_tokens_per_s = edge.tokens_per_s});
    }
  }
  return cluster;
}

helix::HelixReport Simulate(const HelixInputs& inputs, const Setup& setup,
                            const plan::Placement& placement, double seconds) {
  const helix::HelixCluster cluster = ClusterOf(inputs.models.at(kModel), setup, placement);
  const HelixRun run{.warm_up_s = seconds, .window_s = seconds};
  return RunHelixPart(inputs, run, cluster, 20);
}

double InFlight(const helix::HelixReport& report) {
  // Little's law over iterations: each ends with a token or a finished prompt.
  return (report.prompt_s.sum() + report.decode_s.sum()) / report.window_s;
}

void InParallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) work(i);
    });
  }
}

// The best plans, by simulated decode throughput.
std::vector<Candidate> Search(const HelixInputs& inputs, const Setup& setup,
                              const plan::Placement& flow_plan, double in_flight) {
  const plan::RoundsProblem problem =
      HelixRounds(inputs.models.at(kModel), setup.spec, setup.problem, in_flight);
  std::vector<Candidate> candidates = {{"flow planner", flow_plan, {}}};
  for (int seed = 1; seed <= kSeeds; ++seed) {
    candidates.push_back({fmt::format("goodput from shipped, seed {}", seed), setup.shipped, {}});
    candidates.push_back({fmt::format("goodput from flow, seed {}", seed), flow_plan, {}});
  }
  InParallel(candidates.size(), [&](size_t i) {
    Candidate& c = candidates[i];
    if (i > 0) {
      c.placement = plan::SearchRounds(problem, c.placement, kProposals, (i + 1) / 2);
    }
    c.report = Simulate(inputs, setup, c.placement, kRankS);
  });
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.report.decode_tokens > b.report.decode_tokens;
  });
  candidates.resize(kFinalists);
  return candidates;
}

std::string Layers(const Setup& setup, const plan::Placement& placement) {
  std::string text;
  for (size_t i = 0; i < placement.size(); ++i) {
    text += fmt::format("{}{}:[{},{})", i > 0 ? " " : "", setup.problem.nodes[i].kind,
                        placement[i].begin, placement[i].end);
  }
  return text;
}

Figure Compare(const Setup& setup, const helix::HelixReport& shipped, const Candidate& ours) {
  const helix::HelixReport& report = ours.report;
  const double tokens = report.DecodeTokensPerS() / shipped.DecodeTokensPerS();
  const double prompts = report.prompt_s.mean() / shipped.prompt_s.mean();
  const double decodes = report.decode_s.mean() / shipped.decode_s.mean();
  const bool better = tokens > 1 && prompts < 1 && decodes < 1;
  const auto row = [](const helix::HelixReport& r) {
    return fmt::format("{:.1f} tok/s, {:.2f} s, {:.3f} s", r.DecodeTokensPerS(), r.prompt_s.mean(),
                       r.decode_s.mean());
  };
  return {.name = setup.name + ": decode throughput, mean latency of prompts and of decodes",
          .paper = row(shipped),
          .ours = row(report),
          .unit = "",
          .verdict = fmt::format("{}: throughput {:+.0f} %, prompts {:+.0f} %, decodes {:+.0f} %; "
                                 "window of {:.1f} mean residence times",
                                 better ? "better in all three" : "not better in all three",
                                 (tokens - 1) * 100, (prompts - 1) * 100, (decodes - 1) * 100,
                                 report.window_s / report.residence_s.mean()),
          .more = {{"shipped_in_flight", InFlight(shipped)},
                   {"in_flight", InFlight(report)},
                   {"prompt_tokens_per_s", report.PromptTokensPerS()},
                   {"shipped_prompt_tokens_per_s", shipped.PromptTokensPerS()},
                   {"found_by", ours.method},
                   {"layers", Layers(setup, ours.placement)}}};
}

Result<Figure> RunCluster(const HelixInputs& inputs, const Context& context,
                          const std::string& name) {
  MR_ASSIGN_OR_RETURN(const Setup setup, LoadSetup(context.data, name));
  plan::PlanOptions options;
  options.iterations = kFlowProposals;
  options.use_milp = false;
  helix::HelixReport shipped;
  std::optional<Result<plan::PlanOutcome>> flow_plan;
  InParallel(2, [&](size_t i) {
    if (i == 0) shipped = Simulate(inputs, setup, setup.shipped, kSteadyS);
    if (i == 1) flow_plan = plan::PlanByFlow(setup.problem, options);
  });
  if (!flow_plan->ok()) return flow_plan->status();
  if (context.progress) fmt::print(stderr, "{}: searching\n", name);
  std::vector<Candidate> finalists =
      Search(inputs, setup, flow_plan->value().placement, InFlight(shipped));
  InParallel(finalists.size(), [&](size_t i) {
    finalists[i].report = Simulate(inputs, setup, finalists[i].placement, kSteadyS);
  });
  const auto best = std::max_element(finalists.begin(), finalists.end(),
                                     [](const Candidate& a, const Candidate& b) {
                                       return a.report.decode_tokens < b.report.decode_tokens;
                                     });
  return Compare(setup, shipped, *best);
}

Result<std::vector<Figure>> Run(const Context& context) {
  MR_ASSIGN_OR_RETURN(const HelixInputs inputs, LoadHelixInputs(context.data));
  std::vector<Figure> figures;
  for (const char* name : {"single24", "dist24", "hetero42"}) {
    MR_ASSIGN_OR_RETURN(Figure figure, RunCluster(inputs, context, name));
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace

Experiment HelixPlansExperiment() {
  return {.name = "helix_plans",
          .title = "Helix: our plans against its shipped ones in its simulator, steady state",
          .run = Run};
}

}  // namespace millrace::experiments
