// What ClusterSim reports.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "sim/cluster/cluster_sim.h"

namespace millrace::sim {

// The KV in use at a sample counts until the next one. It is that of the pipelines that begin at a
// place. Several of them share the memory of the stage there, each with the layers that it runs.
void ClusterSim::SampleKv() {
  const double seconds = (now_ - std::exchange(sampled_at_, now_)).seconds();
  for (const auto& [place, blocks] : std::exchange(samples_, {})) {
    processes_[static_cast<size_t>(place)].use.kv_block_seconds += blocks * seconds;
  }
  const cluster::ClusterStatus status = controller_->Describe(now_);
  struct Front {
    int pipelines = 0, blocks = 0, layers = 0;
    int64_t block_layers_used = 0;
  };
  std::map<std::string_view, Front> fronts;
  for (const cluster::PipelineStatus& pipeline : status.pipelines) {
    Front& front = fronts[pipeline.workers.front()];
    const int layers = pipeline.layers.front().size();
    ++front.pipelines;
    front.blocks = std::max(front.blocks, pipeline.blocks_total);
    front.layers = std::max(front.layers, layers);
    front.block_layers_used += int64_t{pipeline.blocks_used} * layers;
  }
  for (auto& [name, front] : fronts) {
    const auto stage = std::ranges::find_if(status.stages, [&, n = name](const auto& s) {
      return s.workers.front() == n && s.kv_blocks > 0;
    });
    if (front.pipelines > 1 && stage != status.stages.end()) {
      front.blocks = stage->kv_blocks;
      front.layers = stage->layers.size();
    }
    const auto place = std::ranges::find(places_, name, &WorkerPlace::name) - places_.begin();
    InstanceUse& use = processes_[static_cast<size_t>(place)].use;
    const int used =
        std::min(front.blocks, static_cast<int>(front.block_layers_used / front.layers));
    use.kv_blocks = std::max(use.kv_blocks, front.blocks);
    use.kv_blocks_peak = std::max(use.kv_blocks_peak, used);
    samples_[static_cast<int>(place)] = used;
  }
}

// Of the worker there, and of those before it.
InstanceUse ClusterSim::UseOf(const Process& process) const {
  InstanceUse use = process.use;
  if (!process.worker) return use;
  const InstanceUse& now = process.worker->use();
  use.steps += now.steps;
  use.sequences += now.sequences;
  use.preemptions += now.preemptions;
  use.full_of_sequences += now.full_of_sequences;
  use.full_of_tokens += now.full_of_tokens;
  return use;
}

Duration ClusterSim::BusyOf(const Process& process) const {
  Duration busy = process.busy;
  if (!process.worker) return busy;
  busy = busy + process.worker->busy();
  const Time until = process.worker->busy_until();
  return until > now_ ? busy - (until - now_) : busy;
}

ClusterReport ClusterSim::Report() {
  ClusterReport report;
  report.latency = recorder_.report();
  if (gave_up_) report.latency.refused += recorder_.alive();
  report.load = load_.samples();
  report.simulated_s = static_cast<double>(now_.ns) * 1e-9;
  report.measured_s = std::max(0.0, (now_ - options_.measure_from).seconds());
  report.links = wires_.links().Used();
  report.kv_wait = kv_wait_;
  report.kv_transfer = kv_transfer_;
  report.steps = steps_;
  report.batches = batches_;
  report.events = events_done_;
  report.controller = controller_->counters();
  const sched::SchedulerStats stats = controller_->Stats();
  report.prefix_query_tokens = stats.prefix_query_tokens;
  report.prefix_hit_tokens = stats.prefix_hit_tokens;
  SampleKv();
  AddStages(report);
  AddMembership(report);
  for (int node = 0; node < std::ssize(options_.cluster.nodes); ++node) {
    const double busy_s = wires_.links().Sending(node).seconds();
    report.node_sending_share.push_back(report.simulated_s > 0 ? busy_s / report.simulated_s : 0);
  }
  return report;
}

void ClusterSim::AddStages(ClusterReport& report) const {
  for (size_t place = 0; place < processes_.size(); ++place) {
    InstanceUse use = UseOf(processes_[place]);
    double seconds = report.simulated_s;
    if (!options_.membership.empty()) {
      const int node = places_[place].nodes.front();
      use.ready_s = seconds = availability_.ReadySeconds(node, now_);
    }
    const double busy_s = BusyOf(processes_[place]).seconds();
    report.stage_busy_share.push_back(seconds > 0 ? busy_s / seconds : 0);
    report.stage_use.push_back(use);
  }
}

std::vector<NodeIndex> UsedNodes(const Plan& plan) {
  std::set<NodeIndex> nodes;
  for (const StagePlan& stage : plan.stages) nodes.insert(stage.nodes.begin(), stage.nodes.end());
  return {nodes.begin(), nodes.end()};
}

void ClusterSim::AddMembership(ClusterReport& report) const {
  if (options_.membership.empty()) return;
  const cluster::ControllerCounters& counters = report.controller;
  report.membership = moves_;
  report.membership->replayed += counters.drained_replayed;
  const uint64_t moved = counters.moves - counters.moves_failed;
  report.membership->moved =
      moved - std::min(moved, hand_overs_) + counters.fetched - counters.computed_in_part;
  report.membership->Merge(availability_.Report(now_));
  if (options_.workers == SimWorkers::kByStage) {
    report.membership->machines = static_cast<int>(UsedNodes(options_.plan).size());
  }
  for (int node = 0; node < std::ssize(options_.cluster.nodes); ++node) {
    report.node_paid_s.push_back(availability_.PaidSeconds(node, now_));
  }
}

}  // namespace millrace::sim
