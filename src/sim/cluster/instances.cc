#include "sim/cluster/instances.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace millrace::sim {
namespace {

constexpr double kEvenFlow = 1;  // of a plan's edges

Status CheckRoles(const InstanceClusterOptions& options) {
  if (options.roles.empty()) return OkStatus();
  MR_CHECK(options.roles.size() == options.service.instances.size());
  const auto has = [&](StageRole role) { return std::ranges::count(options.roles, role) > 0; };
  if (has(StageRole::kPrefill) == has(StageRole::kDecode)) return OkStatus();
  return InvalidArgument("prefill instances need decode instances and vice versa");
}

StageRole RoleOf(const InstanceClusterOptions& options, int index) {
  return options.roles.empty() ? StageRole::kBoth : options.roles[static_cast<size_t>(index)];
}

ControllerOverhead OverheadOf(const InstanceOptions& instance) {
  return {.step_s = instance.scheduler_overhead_s,
          .sequence_s = instance.scheduler_overhead_per_seq_s,
          .arrival_s = instance.arrival_s,
          .swap_block_s = instance.swap_s_per_block};
}

}  // namespace

InstanceCluster::InstanceCluster(const InstanceClusterOptions& options) {
  for (const InstanceOptions& instance : options.service.instances) {
    num_layers_ = std::lcm(num_layers_, static_cast<int>(instance.stages.size()));
  }
}

Result<std::unique_ptr<InstanceCluster>> InstanceCluster::Create(
    const InstanceClusterOptions& options) {
  MR_CHECK(!options.service.instances.empty()) << "a cluster needs an instance";
  MR_RETURN_IF_ERROR(CheckRoles(options));
  std::unique_ptr<InstanceCluster> made(new InstanceCluster(options));
  MR_ASSIGN_OR_RETURN(made->cluster_, ClusterSim::Create(made->OptionsOf(options)));
  return made;
}

ClusterSimOptions InstanceCluster::OptionsOf(const InstanceClusterOptions& options) {
  const ServiceOptions& service = options.service;
  const InstanceOptions& first = service.instances.front();
  const KvTransferOptions& kv = options.kv_transfer;
  ClusterSimOptions out;
  out.plan.num_layers = num_layers_;
  out.controller.scheduler = first.scheduler;
  out.controller.deaths_max = options.deaths_max;
  out.controller.dispatch = cluster::DispatchOptions{
      .policy = service.dispatch, .ties = cluster::DispatchTies::kInTurn, .seed = service.seed};
  for (int i = 0; i < std::ssize(service.instances); ++i) AddInstance(options, i, out);
  for (const auto& machine : machines_) out.machines.push_back(machine.get());
  out.other_links =
      OtherLinks{.bytes_per_s = kv.bytes_per_s, .latency = Duration::Seconds(kv.latency_s)};
  // A token's activations count as one unit, whose time between stages is known.
  out.activation_bytes_per_token = first.hop_s_per_token > 0 ? 1 : 0;
  out.inside_node = {.latency_s = first.hop_s,
                     .bytes_per_s = first.hop_s_per_token > 0 ? 1 / first.hop_s_per_token : 0};
  out.kv_bytes_per_token_layer = kv.kv_bytes_per_token / num_layers_;
  out.overhead = OverheadOf(first);
  out.front_end = service.front_end;
  out.limits = service.limits;
  out.stop_at = service.stop_at;
  out.membership = options.membership;
  out.on_notice = options.on_notice;
  return out;
}

void InstanceCluster::AddInstance(const InstanceClusterOptions& options, int index,
                                  ClusterSimOptions& out) {
  const InstanceOptions& instance = options.service.instances[static_cast<size_t>(index)];
  const int stages = static_cast<int>(instance.stages.size());
  const auto base = static_cast<int>(out.plan.stages.size());
  out.cluster.nodes.push_back({.name = fmt::format("instance {}", index),
                               .nic_bytes_per_s = options.kv_transfer.bytes_per_s});
  sched::SchedulerOptions& scheduler = out.controller.scheduler;
  scheduler.num_blocks = std::max(scheduler.num_blocks, instance.scheduler.num_blocks);
  first_stage_.push_back(base);
  for (int s = 0; s < stages; ++s) {
    const LayerRange layers{num_layers_ * s / stages, num_layers_ * (s + 1) / stages};
    out.plan.stages.push_back({{index}, 1, layers, RoleOf(options, index)});
    out.plan.edges.push_back({s == 0 ? std::optional<int>() : base + s - 1, base + s, kEvenFlow});
    StageMachine::Options machine{
        .cost = instance.stages[static_cast<size_t>(s)],
        .kv_tokens = int64_t{instance.scheduler.num_blocks} * instance.scheduler.block_size,
        .pace = instance.pace};
    if (instance.pace != nullptr) {
      const double share = static_cast<double>(s) / stages;
      machine.pace_from_s = instance.pace_from_s + share * instance.pace->length_s();
    }
    machines_.push_back(std::make_unique<StageMachine>(machine));
    stage_of_.emplace_back(index, s);
  }
  out.plan.edges.push_back({base + stages - 1, std::nullopt, kEvenFlow});
}

void InstanceCluster::OnBatch(
    std::function<void(int instance, int stage, const StepRecord&)> observe) {
  cluster_->on_batch = [this, observe = std::move(observe)](int stage, const StepRecord& record) {
    const auto [instance, own] = stage_of_[static_cast<size_t>(stage)];
    observe(instance, own, record);
  };
}

ServiceReport InstanceCluster::Run(Workload& workload) {
  ClusterReport run = cluster_->Run(workload);
  ServiceReport report;
  report.latency = std::move(run.latency);
  report.load = std::move(run.load);
  report.steps = run.steps;
  report.events = run.events;
  report.prefix_query_tokens = run.prefix_query_tokens;
  report.prefix_hit_tokens = run.prefix_hit_tokens;
  report.simulated_s = run.simulated_s;
  report.kv_wait = run.kv_wait;
  report.kv_transfer = run.kv_transfer;
  report.kv_link_busy_share = run.node_sending_share;
  report.membership = run.membership;
  report.stats.resize(first_stage_.size());
  report.busy_share.resize(first_stage_.size());
  for (size_t i = 0; i < stage_of_.size(); ++i) {
    report.busy_share[static_cast<size_t>(stage_of_[i].first)].push_back(run.stage_busy_share[i]);
  }
  for (const int stage : first_stage_) {
    report.use.push_back(run.stage_use[static_cast<size_t>(stage)]);
  }
  return report;
}

}  // namespace millrace::sim
