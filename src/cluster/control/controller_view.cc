#include "cluster/control/controller_view.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cluster/control/flow_status.h"
#include "cluster/control/layout/slot_assignment.h"

namespace millrace::cluster {
namespace {

std::vector<WorkerStatus> DescribeWorkers(const Membership& members, const Layout& layout,
                                          Time now) {
  std::vector<WorkerStatus> workers;
  for (const auto& [id, worker] : members.all()) {
    WorkerStatus& w = workers.emplace_back();
    w.id = id;
    w.name = worker.join.name;
    w.device = worker.join.device;
    w.control = worker.address.control;
    w.usable = worker.unusable.empty();
    w.note = w.usable ? WhyNoSlot(layout, members, worker) : worker.unusable;
    w.fingerprint = members.FingerprintOf(worker.bits);
    w.draining = worker.draining;
    w.notice = worker.notice;
    if (w.notice && w.notice->deadline) {
      w.notice_left = std::max(Duration(), *w.notice->deadline - now);
    }
    w.memory_bytes = worker.join.memory_bytes;
    w.batches = worker.beat.steps_done;
    w.silent = now - worker.last_beat;
    w.numeric_class = worker.join.identity.numeric_class;
    w.host_id = worker.address.host_id;
    w.machine = worker.join.machine;
    w.profile = worker.profile;
    for (const LayoutStage& stage : layout.stages) {
      for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
        const Slot& slot = stage.ranks[rank];
        if (slot.worker != id || !slot.loaded) continue;
        w.layers.push_back(stage.plan.layers);
        w.rank = static_cast<int>(rank);
        w.ranks = static_cast<int>(stage.ranks.size());
        w.weight_bytes += slot.facts.weight_bytes;
        w.kv_bytes = slot.facts.kv_bytes;  // for all its slots
      }
    }
  }
  return workers;
}

ServerSizes ServerSizesOf(const sched::SchedulerOptions& options) {
  return {.block_size = options.block_size,
          .max_num_seqs = options.max_num_seqs,
          .max_num_batched_tokens = options.max_num_batched_tokens,
          .max_model_len = options.max_model_len,
          .enable_prefix_caching = options.prefix_caching};
}

}  // namespace

ClusterStatus ControllerView::Describe(Time now) const {
  const Layout& layout = parts_.deployment.layout();
  ClusterStatus status{.term = options_.term,
                       .epoch = layout.plan.epoch,
                       .plan = layout.plan,
                       .missing = parts_.lifecycle.Missing(),
                       .degraded = layout.Degraded(),
                       .changing = parts_.deployment.changing(),
                       .given_up = parts_.deployment.given_up(),
                       .still = parts_.members.still(),
                       .links = parts_.machines.Links(now),
                       .requests = static_cast<int64_t>(parts_.requests.size()),
                       .waiting = static_cast<int64_t>(parts_.requests.waiting()),
                       .moving = parts_.transfers.moving(),
                       .cross_class_replay = options_.cross_class_replay,
                       .server = ServerSizesOf(options_.scheduler),
                       .counters = counters(),
                       .notices = parts_.machines.notices()};
  status.workers = DescribeWorkers(parts_.members, layout, now);
  for (const auto& [id, pipeline] : parts_.pipelines.all()) {
    PipelineStatus& l = status.pipelines.emplace_back();
    l.id = id;
    l.workers = pipeline.names;
    for (const PipelineHop& hop : pipeline.hops) l.layers.push_back(hop.layers);
    l.role = pipeline.role;
    l.fingerprint = parts_.members.FingerprintOf(pipeline.bits);
    l.numeric_class = parts_.members.NumericClassOf(pipeline.bits);
    l.open = pipeline.open;
    l.retiring = pipeline.retiring;
    l.requests = static_cast<int64_t>(pipeline.requests.size());
    l.blocks_total = parts_.memory.limit(id);
    l.blocks_used = pipeline.scheduler->blocks_in_use();
  }
  status.stages = DescribeStages(layout, parts_.members, parts_.pipelines, options_.scheduler);
  const EdgeFlows::Table flows = parts_.pipelines.Flows();
  status.edges = DescribeEdges(layout, parts_.members, flows, parts_.pipelines.FlowsBeforeLayout());
  UseHandOvers(flows, status.links);
  status.waiting_for = DescribeWaiting(parts_.pipelines);
  const Requests& requests = parts_.requests;
  const bool apart = !layout.prefill.empty();
  const size_t decode = apart ? requests.waiting(WaitsFor::kDecode) : 0;
  status.waiting_for.decode += static_cast<int>(decode);
  status.waiting_for.prefill += static_cast<int>(requests.waiting() - decode);
  return status;
}

ControllerCounters ControllerView::counters() const {
  ControllerCounters counters = parts_.counters;
  counters.pipelines_opened = parts_.pipelines.opened();
  counters.layouts = static_cast<uint64_t>(parts_.deployment.newest_epoch());
  counters.plans_applied = parts_.deployment.applied();
  counters.plans_given_up = parts_.deployment.given_up_count();
  counters.replays += parts_.transfers.recomputed();
  static_cast<TransferCounters&>(counters) = parts_.transfers.counters();
  counters.profiles_refused = parts_.machines.profiles_refused();
  counters.links_probed = parts_.machines.links_probed();
  counters.probes_failed = parts_.machines.probes_failed();
  counters.stale_messages += parts_.machines.stale();
  return counters;
}

sched::SchedulerStats ControllerView::Stats() const {
  sched::SchedulerStats sum = parts_.pipelines.Stats();
  sum.waiting += static_cast<int>(parts_.requests.waiting());
  return sum;
}

std::optional<sched::RequestInfo> ControllerView::Inspect(RequestId id, Time now) const {
  const Requests::Request* request = parts_.requests.Find(id);
  if (request == nullptr) return std::nullopt;
  if (request->pipeline) return parts_.pipelines.at(*request->pipeline).scheduler->Inspect(id, now);
  sched::RequestInfo info;
  info.id = id;
  info.age = now - request->arrived;
  info.prompt_tokens = request->prompt_tokens();
  info.output_tokens = static_cast<int>(request->delivered);
  info.waits_for = parts_.lifecycle.placements().LacksClass(*request)
                       ? parts_.lifecycle.WhyItWaits(*request)
                       : parts_.lifecycle.Missing().value_or("a pipeline");
  return info;
}

std::optional<TimeAccount> ControllerView::Account(RequestId id, Time now) const {
  const Requests::Request* request = parts_.requests.Find(id);
  const bool runs = request != nullptr && request->pipeline;
  return runs ? parts_.pipelines.at(*request->pipeline).scheduler->Account(id, now)
              : parts_.requests.AccountOfWaiting(id, now);
}

std::vector<sched::RequestInfo> ControllerView::InspectAll(Time now) const {
  std::vector<sched::RequestInfo> all;
  for (const auto& [id, request] : parts_.requests.all()) {
    if (auto info = Inspect(id, now)) all.push_back(std::move(*info));
  }
  std::ranges::sort(all, {}, &sched::RequestInfo::id);
  return all;
}

void ControllerView::CheckIntegrity() const {
  for (const auto& [id, pipeline] : parts_.pipelines.all()) {
    for (RequestId request : pipeline.requests.Ids()) {
      const Requests::Request* found = parts_.requests.Find(request);
      MR_CHECK(found != nullptr && found->pipeline == id)
          << "pipeline " << id << " has request " << request << ", which is not in it";
    }
  }
  parts_.requests.CheckIntegrity();
  for (const auto& [id, request] : parts_.requests.all()) {
    if (!request.pipeline) continue;
    MR_CHECK(parts_.pipelines.contains(*request.pipeline) &&
             parts_.pipelines.at(*request.pipeline).requests.contains(id))
        << "request " << id << " is in a pipeline that does not know it";
  }
  parts_.transfers.CheckIntegrity();
  parts_.members.CheckIntegrity();
  for (const auto& [id, worker] : parts_.members.all()) {
    MR_CHECK(!worker.draining || worker.leaving() || worker.drain_ordered ||
             parts_.deployment.told_to_leave(id))
        << "worker " << id << " drains, and nothing calls for it";
  }
  parts_.pipelines.CheckIntegrity();
  parts_.deployment.CheckIntegrity();
  parts_.memory.CheckIntegrity();
}

}  // namespace millrace::cluster
