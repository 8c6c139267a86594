#include "apps/simulate/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "sim/fast/static_batching.h"

namespace millrace::apps {

Result<sim::ServiceReport> Runner::RunSeed(std::optional<double> rate, uint64_t seed,
                                           sim::Timeline* timeline) {
  const auto requests = workload_.Make(seed, rate);
  if (options_.scheduling == Scheduling::kStatic) return RunStatic(*requests);
  if (deployment_.plan) return RunPlan(*requests, timeline);
  const bool plain = deployment_.prefill_instances == 0 && !deployment_.membership;
  return plain ? RunReplicas(OptionsOf(seed), *requests, timeline)
               : RunInstances(OptionsOf(seed), *requests, timeline);
}

sim::ServiceOptions Runner::OptionsOf(uint64_t seed) const {
  sim::ServiceOptions options;
  options.instances.assign(static_cast<size_t>(deployment_.instances), deployment_.instance);
  for (size_t i = 0; deployment_.pace && i < options.instances.size(); ++i) {
    const double share = static_cast<double>(HashCounter(seed, i) >> 11) * 0x1p-53;
    options.instances[i].pace_from_s = share * deployment_.pace->length_s();
  }
  options.front_end = deployment_.front_end;
  options.dispatch = options_.dispatch;
  options.limits = workload_.limits;
  options.seed = seed;
  return options;
}

std::function<void(uint64_t, Time)> Runner::Progress() {
  if (!on_progress) return {};
  return [this](uint64_t arrived, Time) { on_progress(requests_before_ + arrived); };
}

Result<sim::ServiceReport> Runner::RunReplicas(sim::ServiceOptions options, sim::Workload& requests,
                                               sim::Timeline* timeline) {
  MR_ASSIGN_OR_RETURN(const auto service, sim::Service::Create(options));
  if (timeline != nullptr) {
    service->OnStep(
        [timeline](int index, const sim::StepRecord& record) { timeline->Add(index, record); });
  }
  service->on_progress = Progress();
  return service->Run(requests);
}

Result<sim::ServiceReport> Runner::RunInstances(sim::ServiceOptions service,
                                                sim::Workload& requests, sim::Timeline* timeline) {
  sim::InstanceClusterOptions options{.service = std::move(service),
                                      .kv_transfer = deployment_.kv_transfer};
  for (int i = 0; deployment_.prefill_instances > 0 && i < deployment_.instances; ++i) {
    options.roles.push_back(i < deployment_.prefill_instances ? StageRole::kPrefill
                                                              : StageRole::kDecode);
  }
  if (deployment_.membership) {
    options.membership = deployment_.membership->changes;
    options.on_notice = deployment_.membership->on_notice;
  }
  MR_ASSIGN_OR_RETURN(const auto instances, sim::InstanceCluster::Create(options));
  if (timeline != nullptr) {
    const auto stages = static_cast<int>(deployment_.instance.stages.size());
    std::vector<std::string> names;
    for (int i = 0; i < deployment_.instances * stages; ++i) {
      names.push_back(stages == 1 ? fmt::format("instance {}", i)
                                  : fmt::format("instance {}, stage {}", i / stages, i % stages));
    }
    timeline->SetNames(std::move(names));
    instances->OnBatch([timeline, stages](int instance, int stage, const sim::StepRecord& record) {
      timeline->Add(instance * stages + stage, record);
    });
  }
  instances->cluster().on_progress = Progress();
  return instances->Run(requests);
}

sim::ServiceReport Runner::RunStatic(sim::Workload& requests) const {
  const auto& scheduler = deployment_.instance.scheduler;
  const auto stages = static_cast<int>(deployment_.instance.stages.size());
  sim::StaticBatchingOptions options;
  options.stages = deployment_.instance.stages;
  options.max_batch = scheduler.max_num_seqs;
  options.micro_batch = (scheduler.max_num_seqs + stages - 1) / stages;
  options.limits = workload_.limits;
  sim::ServiceReport report;
  report.latency = sim::RunStaticBatching(options, requests);
  report.simulated_s = report.latency.seconds();
  return report;
}

// In the report, each stage of the plan appears as an instance with one stage.
Result<sim::ServiceReport> Runner::RunPlan(sim::Workload& requests, sim::Timeline* timeline) {
  sim::ClusterSimOptions options = deployment_.plan->options;
  options.limits = workload_.limits;
  MR_ASSIGN_OR_RETURN(const auto cluster_sim, sim::ClusterSim::Create(std::move(options)));
  std::optional<sim::AutopilotSim> pilot;
  if (options_.autopilot) pilot.emplace(*options_.autopilot, *cluster_sim);
  if (timeline != nullptr) {
    timeline->SetNames(WorkerNames());
    cluster_sim->on_batch = [timeline](int stage, const sim::StepRecord& record) {
      timeline->Add(stage, record);
    };
  }
  cluster_sim->on_progress = Progress();
  sim::ClusterReport run = cluster_sim->Run(requests);
  if (pilot) {
    const auto& decisions = pilot->autopilot().decisions();
    decisions_.assign(decisions.begin(), decisions.end());
  }
  sim::ServiceReport report;
  report.latency = std::move(run.latency);
  report.load = std::move(run.load);
  report.steps = run.steps;
  report.prefix_query_tokens = run.prefix_query_tokens;
  report.prefix_hit_tokens = run.prefix_hit_tokens;
  report.simulated_s = run.simulated_s;
  report.kv_wait = run.kv_wait;
  report.kv_transfer = run.kv_transfer;
  report.membership = run.membership;
  const ClusterSpec& cluster = deployment_.plan->options.cluster;
  for (size_t i = 0; i < run.node_paid_s.size(); ++i) {
    paid_usd_ += run.node_paid_s[i] / 3600 * cluster.nodes[i].price_usd_per_hour;
  }
  for (const double share : run.stage_busy_share) report.busy_share.push_back({share});
  report.stats.resize(report.busy_share.size());
  report.use = std::move(run.stage_use);
  links_.clear();
  const auto name = [&](int node) {
    return node == cluster.coordinator() ? "coordinator"
                                         : cluster.nodes[static_cast<size_t>(node)].name;
  };
  for (const sim::LinkUse& link : run.links) {
    links_.push_back({name(link.from) + " to " + name(link.to),
                      run.simulated_s > 0 ? link.busy.seconds() / run.simulated_s : 0});
  }
  std::stable_sort(links_.begin(), links_.end(),
                   [](const auto& a, const auto& b) { return a.busy_share > b.busy_share; });
  return report;
}

std::vector<std::string> Runner::WorkerNames() const {
  const sim::ClusterSimOptions& options = deployment_.plan->options;
  std::vector<std::string> names;
  if (options.workers == sim::SimWorkers::kByNode) {
    for (const NodeSpec& node : options.cluster.nodes) names.push_back(node.name);
    return names;
  }
  for (const StagePlan& stage : options.plan.stages) {
    const NodeSpec& node = options.cluster.nodes[static_cast<size_t>(stage.nodes.front())];
    names.push_back(fmt::format("stage {} on {}", names.size(), node.name));
  }
  return names;
}

void Runner::AddPlanNames(sim::SimReport& report) const {
  const std::vector<std::string> names = WorkerNames();
  const bool by_node = deployment_.plan->options.workers == sim::SimWorkers::kByNode;
  for (size_t i = 0; i < report.instances.size(); ++i) {
    report.instances[i].name = names[i];
    if (by_node) continue;
    const LayerRange layers = deployment_.plan->options.plan.stages[i].layers;
    report.instances[i].name += fmt::format(", layers [{}, {})", layers.begin, layers.end);
  }
  report.links = links_;
}

Result<sim::SimReport> Runner::Run(std::optional<double> rate, sim::Timeline* timeline) {
  sim::SimReport report;
  paid_usd_ = 0;
  std::vector<sim::ServiceReport> runs;
  std::vector<cluster::Decision> first_decisions;
  for (int i = 0; i < options_.num_seeds; ++i) {
    const uint64_t seed = options_.first_seed + static_cast<uint64_t>(i);
    MR_ASSIGN_OR_RETURN(sim::ServiceReport run, RunSeed(rate, seed, i == 0 ? timeline : nullptr));
    requests_before_ += run.latency.requests + run.latency.refused;
    if (on_progress) on_progress(requests_before_);
    if (i == 0) {
      load_ = run.load;
      first_decisions = decisions_;
    }
    runs.push_back(std::move(run));
    report.seeds.push_back(seed);
  }
  decisions_ = std::move(first_decisions);
  report.deployment = deployment_.text;
  if (options_.scheduling == Scheduling::kStatic) report.deployment += ", static batching";
  report.cost_from = deployment_.cost_from;
  sim::WorkloadSpec shown = workload_;
  if (rate) shown.rate = rate;
  report.workload = shown.Describe();
  for (const sim::WorkloadSpec& client : shown.clients) report.clients.push_back(client.name);
  report.rate = shown.MeanRate();
  report.limits = workload_.limits;
  report.usd_per_hour = deployment_.usd_per_hour;
  sim::Summarize(runs, report);
  if (report.membership && report.usd_per_hour && report.simulated_s > 0) {
    // Instances have equal prices; a plan's nodes have their own.
    const double instances_s = report.membership->machines * report.simulated_s;
    report.usd_per_hour = deployment_.plan
                              ? paid_usd_ / (report.simulated_s / 3600)
                              : *report.usd_per_hour * report.membership->paid_s / instances_s;
  }
  if (deployment_.plan) AddPlanNames(report);
  return report;
}

Result<sim::Goodput> Runner::FindGoodput(double tolerance) {
  sim::GoodputOptions options;
  options.start_rate = workload_.MeanRate().value_or(1);
  options.tolerance = tolerance;
  options.seeds = options_.num_seeds;
  options.first_seed = options_.first_seed;
  return sim::FindGoodput(options, [this](double rate, uint64_t seed) -> Result<sim::GoodputTrial> {
    MR_ASSIGN_OR_RETURN(const sim::ServiceReport run, RunSeed(rate, seed, nullptr));
    requests_before_ += run.latency.requests + run.latency.refused;
    return sim::GoodputTrial{
        .rate = rate,
        .seed = seed,
        .attainment = run.latency.attainment(),
        .kept = run.latency.Keeps(workload_.limits) && !sim::FindSaturation(run.load)};
  });
}

}  // namespace millrace::apps
