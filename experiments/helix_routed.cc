// Helix (ASPLOS'25): placements under Millrace's own controller, workers and ledger on the virtual
// clock (sim/cluster), with the published layer times, KV limits and links. The artifact's figures
// come from another model of the machine (helix_tables). Here every plan runs under the same model,
// kept full by more requests than fit.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/file.h"
#include "cost/layer_table_cost.h"
#include "experiments/helix_data.h"
#include "experiments/helix_goodput.h"
#include "experiments/helix_runs.h"
#include "experiments/list.h"
#include "plan/flow/flow_from_helix.h"
#include "plan/flow/planner.h"
#include "plan/io/helix_files.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::experiments {
namespace {

constexpr const char* kModel = "llama2_70b";
constexpr int64_t kProposals = 3'000'000;
constexpr int64_t kGoodputProposals = 40'000;
constexpr double kWarmUpS = 1000, kWindowS = 2000;
constexpr uint64_t kRequests = 60'000;  // more than can be served

struct Setup {
  std::string name;
  ClusterSpec cluster;
  plan::FlowProblem whole, partial;  // without and with partial inference
  std::map<std::string, cost::LayerTableCost> layer_cost;
};

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return std::tolower(c); });
  return text;
}

Result<Setup> LoadSetup(const std::string& data, const std::string& name) {
  Setup setup{.name = name};
  const std::string file = data + "/helix/clusters/" + name + ".ini";
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kHelixFileBytesMax));
  MR_ASSIGN_OR_RETURN(setup.cluster, plan::ParseHelixCluster(text, file));
  MR_ASSIGN_OR_RETURN(const auto capacity, LoadHelixCapacity(data, name));
  setup.whole = plan::FlowFromHelix(capacity, /*partial_inference=*/false);
  setup.partial = plan::FlowFromHelix(capacity, /*partial_inference=*/true);
  for (const plan::FlowNode& node : setup.whole.nodes) {
    if (setup.layer_cost.contains(node.kind)) continue;
    MR_ASSIGN_OR_RETURN(
        cost::LayerTable table,
        cost::LayerTable::Load(data + "/helix/profiles/" + kModel + "/" + Lower(node.kind)));
    setup.layer_cost.emplace(node.kind, cost::LayerTableCost(std::move(table), 1));
  }
  return setup;
}

struct Outcome {
  // The mean number of decoding requests, by Little's law.
  double InFlight() const { return decode_tokens_per_s * tpot_s; }
  double flow = 0, decode_tokens_per_s = 0, tpot_s = 0;
  size_t pipelines = 0;
};

Result<Outcome> RunPlan(const HelixInputs& inputs, const Setup& setup,
                        const plan::FlowProblem& problem, const plan::Placement& placement) {
  const plan::PlacementFlow flow = plan::SolvePlacementFlow(problem, placement);
  sim::ClusterSimOptions options;
  options.plan = plan::MakePlan(problem, placement, flow, 0);
  options.cluster = setup.cluster;
  const helix::HelixModel& model = inputs.models.at(kModel);
  std::vector<std::unique_ptr<sim::LayeredMachine>> machines;
  for (const StagePlan& stage : options.plan.stages) {
    const std::string& kind = problem.nodes[stage.nodes.front()].kind;
    const int64_t kv = model.gpus.at(kind).LimitsOf(stage.layers.size()).kv_entries;
    machines.push_back(std::make_unique<sim::LayeredMachine>(
        sim::LayeredMachine::Options{.per_layer = &setup.layer_cost.at(kind),
                                     .num_layers = options.plan.num_layers,
                                     .kv_token_layers = [kv](LayerRange) { return kv; }}));
    options.machines.push_back(machines.back().get());
  }
  options.activation_bytes_per_token = model.activation_bytes;
  options.token_bytes = model.token_bytes;
  options.controller.scheduler.max_num_seqs = 256;
  options.controller.scheduler.max_num_batched_tokens = 512;
  options.controller.scheduler.max_model_len = 4096;
  options.controller.scheduler.prefix_caching = false;
  options.controller.kv_high_water = 0.9;
  options.measure_from = Time{} + Duration::Seconds(kWarmUpS);
  options.stop_at = Time{} + Duration::Seconds(kWarmUpS + kWindowS);
  MR_ASSIGN_OR_RETURN(const auto cluster, sim::ClusterSim::Create(std::move(options)));
  sim::SyntheticOptions load{.requests = kRequests,
                             .rate = std::numeric_limits<double>::infinity()};
  for (const auto& [prompt, output] : inputs.trace.lengths) {
    load.lengths.push_back({prompt, output});
  }
  const auto workload = sim::NewSynthetic(std::move(load));
  const sim::ClusterReport report = cluster->Run(*workload);
  return Outcome{
      .flow = flow.tokens_per_s,
      .decode_tokens_per_s = static_cast<double>(report.latency.itl.count()) / report.measured_s,
      .tpot_s = report.latency.itl.mean(),
      .pipelines = report.controller.pipelines_opened};
}

struct Candidate {
  const char* name;
  const plan::FlowProblem* problem;
  plan::Placement placement;
};

// The published plan comes first. The search for goodput uses the number of requests that it held.
Result<std::vector<Candidate>> Candidates(const HelixInputs& inputs, const Setup& setup,
                                          const Context& context) {
  const std::string folder = setup.name + "/" + kModel + "/";
  MR_ASSIGN_OR_RETURN(plan::Placement shipped,
                      LoadHelixPlacement(context.data, folder + "helix.ini"));
  MR_ASSIGN_OR_RETURN(plan::Placement swarm,
                      LoadHelixPlacement(context.data, folder + "swarm.ini"));
  plan::PlanOptions options;
  options.iterations = kProposals;
  options.use_milp = false;
  MR_ASSIGN_OR_RETURN(plan::PlanOutcome whole, plan::PlanByFlow(setup.whole, options));
  MR_ASSIGN_OR_RETURN(plan::PlanOutcome partial, plan::PlanByFlow(setup.partial, options));
  MR_ASSIGN_OR_RETURN(const Outcome held, RunPlan(inputs, setup, setup.whole, shipped));
  const plan::RoundsProblem rounds =
      HelixRounds(inputs.models.at(kModel), setup.cluster, setup.whole, held.InFlight());
  plan::Placement searched = plan::SearchRounds(rounds, shipped, kGoodputProposals, 1);
  return std::vector<Candidate>{
      {"Helix, shipped", &setup.whole, std::move(shipped)},
      {"Swarm, shipped", &setup.whole, std::move(swarm)},
      {"most flow", &setup.whole, std::move(whole.placement)},
      {"most flow, partial", &setup.partial, std::move(partial.placement)},
      {"goodput search", &setup.whole, std::move(searched)}};
}

Result<std::vector<Figure>> Run(const Context& context) {
  MR_ASSIGN_OR_RETURN(const HelixInputs inputs, LoadHelixInputs(context.data));
  std::vector<Figure> figures;
  for (const char* name : {"single24", "dist24", "hetero42"}) {
    MR_ASSIGN_OR_RETURN(const Setup setup, LoadSetup(context.data, name));
    MR_ASSIGN_OR_RETURN(const auto candidates, Candidates(inputs, setup, context));
    double shipped = 0;
    for (const Candidate& c : candidates) {
      MR_ASSIGN_OR_RETURN(const Outcome o, RunPlan(inputs, setup, *c.problem, c.placement));
      if (shipped == 0) shipped = o.decode_tokens_per_s;
      figures.push_back(
          {.name = fmt::format("{}: {}", name, c.name),
           .paper = nullptr,
           .ours = o.decode_tokens_per_s,
           .unit = "decode tok/s",
           .verdict = fmt::format("{:+.0f} % to the shipped plan; mean gap {:.2f} s, flow {:.0f}, "
                                  "{} pipelines",
                                  (o.decode_tokens_per_s / shipped - 1) * 100, o.tpot_s, o.flow,
                                  o.pipelines),
           .more = {{"mean_gap_s", o.tpot_s}, {"flow", o.flow}, {"pipelines", o.pipelines}}});
      if (context.progress) fmt::print(stderr, "{}: {} done\n", name, c.name);
    }
  }
  return figures;
}

}  // namespace

Experiment HelixRoutedExperiment() {
  return {.name = "helix_routed",
          .title = "Helix: placements under Millrace's own router and schedulers",
          .run = Run};
}

}  // namespace millrace::experiments
