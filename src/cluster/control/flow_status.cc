#include "cluster/control/flow_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace millrace::cluster {
namespace {

int BlocksOf(const LayoutStage& stage, const sched::SchedulerOptions& options) {
  if (!stage.Up()) return 0;
  const int64_t block_layers = int64_t{options.block_size} * stage.plan.layers.size();
  const int most = options.num_blocks > 0 ? options.num_blocks : std::numeric_limits<int>::max();
  return static_cast<int>(std::min<int64_t>(stage.KvTokenLayers() / block_layers, most));
}

// What has flowed after `before`. Counts that began again in between are all new.
EdgeFlows::Flow Since(const EdgeFlows::Flow& now, const EdgeFlows::Flow& before) {
  if (now.tokens < before.tokens || now.requests < before.requests) return now;
  return {now.tokens - before.tokens, now.requests - before.requests, now.bytes - before.bytes,
          now.seconds - before.seconds};
}

}  // namespace

std::vector<StageStatus> DescribeStages(const Layout& layout, const Membership& members,
                                        const Pipelines& pipelines,
                                        const sched::SchedulerOptions& options) {
  std::vector<sched::SchedulerStats> stats;
  for (const auto& [id, pipeline] : pipelines.all()) {
    stats.push_back(pipeline.scheduler->Stats());
  }
  std::vector<StageStatus> stages;
  for (const LayoutStage& stage : layout.stages) {
    StageStatus& s = stages.emplace_back();
    for (const Slot& slot : stage.ranks) {
      s.workers.push_back(slot.worker ? members.at(*slot.worker).join.name : "");
    }
    s.layers = stage.plan.layers;
    s.role = stage.plan.role;
    s.up = stage.Up();
    s.kv_blocks = BlocksOf(stage, options);
    int64_t block_layers = 0;
    size_t next = 0;
    for (const auto& [id, pipeline] : pipelines.all()) {
      const sched::SchedulerStats& here = stats[next++];
      for (const PipelineHop& hop : pipeline.hops) {
        if (!std::ranges::equal(stage.ranks, hop.shards, {}, &Slot::shard)) continue;
        s.running += here.running;
        s.waiting += here.waiting + here.pulling;
        block_layers += int64_t{pipeline.scheduler->blocks_in_use()} * hop.layers.size();
      }
    }
    const auto used = static_cast<int>((block_layers + s.layers.size() - 1) / s.layers.size());
    s.kv_blocks_used = std::min(used, s.kv_blocks);  // parts of blocks are counted as whole ones
  }
  return stages;
}

void UseHandOvers(const EdgeFlows::Table& flows, std::vector<LinkStatus>& links) {
  for (LinkStatus& link : links) {
    const auto found = flows.find({link.from, link.to, EdgePhase::kHandOver});
    if (found == flows.end()) continue;
    const EdgeFlows::Flow& flow = found->second;
    if (flow.bytes < kHandOverBytesMin || flow.seconds <= 0) continue;
    link.bytes_per_s = static_cast<double>(flow.bytes) / flow.seconds;
  }
}

WaitingStatus DescribeWaiting(const Pipelines& pipelines) {
  WaitingStatus waiting;
  for (const auto& [id, pipeline] : pipelines.all()) {
    const sched::SchedulerStats stats = pipeline.scheduler->Stats();
    (pipeline.role == StageRole::kDecode ? waiting.decode : waiting.prefill) += stats.waiting;
    waiting.transfer += stats.pulling;
  }
  return waiting;
}

std::vector<EdgeStatus> DescribeEdges(const Layout& layout, const Membership& members,
                                      const EdgeFlows::Table& flows,
                                      const EdgeFlows::Table& before) {
  // The flow of an automatic layout only says that its pipelines are equal.
  const bool states_flow = layout.states_flow && !layout.automatic;
  const auto name = [&](const std::optional<int>& stage) -> std::string {
    if (!stage) return EdgeFlows::kCoordinator;
    const std::optional<WorkerId>& worker =
        layout.stages[static_cast<size_t>(*stage)].ranks.front().worker;
    return worker ? members.at(*worker).join.name : fmt::format("stage {}", *stage);
  };
  std::vector<EdgeStatus> edges;
  std::map<EdgeFlows::Key, size_t> places;
  // Stages that one worker has in the same role are one end.
  const auto edge_of = [&](const EdgeFlows::Key& key) -> EdgeStatus& {
    const auto place = places.try_emplace(key, edges.size());
    if (place.second) edges.push_back({.from = key.from, .to = key.to, .phase = key.phase});
    return edges[place.first->second];
  };
  for (const PlanEdge& planned : layout.plan.edges) {
    if (edges.size() >= EdgeFlows::kEdgesMax) break;
    EdgeStatus& edge = edge_of({name(planned.from), name(planned.to), planned.phase});
    edge.planned = true;
    if (states_flow) edge.planned_tokens_per_s += planned.tokens_per_s;
  }
  for (const auto& [key, flow] : flows) {
    EdgeStatus& edge = edge_of(key);
    edge.since_start = flow;
    const auto then = before.find(key);
    edge.since_plan = then == before.end() ? flow : Since(flow, then->second);
  }
  return edges;
}

}  // namespace millrace::cluster
