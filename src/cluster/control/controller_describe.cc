// The controller's status.
#include <algorithm>

#include "cluster/control/controller_core.h"
#include "cluster/control/controller_status.h"
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

ClusterStatus ControllerCore::Describe(Time now) const {
  ClusterStatus status{.term = options_.term,
                       .epoch = layout().plan.epoch,
                       .plan = layout().plan,
                       .missing = Missing(),
                       .degraded = layout().Degraded(),
                       .changing = deployment_.changing(),
                       .given_up = given_up(),
                       .still = members_.still(),
                       .links = machines_.Links(now),
                       .requests = static_cast<int64_t>(requests_.size()),
                       .waiting = static_cast<int64_t>(requests_.waiting()),
                       .moving = transfers_.moving(),
                       .cross_class_replay = options_.cross_class_replay,
                       .server = ServerSizesOf(options_.scheduler),
                       .counters = counters(),
                       .notices = machines_.notices()};
  status.workers = DescribeWorkers(members_, layout(), now);
  for (const auto& [id, pipeline] : pipelines_.all()) {
    PipelineStatus& l = status.pipelines.emplace_back();
    l.id = id;
    l.workers = pipeline.names;
    for (const PipelineHop& hop : pipeline.hops) l.layers.push_back(hop.layers);
    l.role = pipeline.role;
    l.fingerprint = members_.FingerprintOf(pipeline.bits);
    l.numeric_class = members_.NumericClassOf(pipeline.bits);
    l.open = pipeline.open;
    l.retiring = pipeline.retiring;
    l.requests = static_cast<int64_t>(pipeline.requests.size());
    l.blocks_total = memory_.limit(id);
    l.blocks_used = pipeline.scheduler->blocks_in_use();
  }
  status.stages = DescribeStages(layout(), members_, pipelines_, options_.scheduler);
  status.edges = DescribeEdges(layout(), members_, pipelines_.Flows(), before_plan_);
  status.waiting_for = DescribeWaiting(pipelines_);
  for (RequestId id : requests_.Queue()) {
    const bool decodes = !layout().prefill.empty() && !placements_.NeedsPrompt(*requests_.Find(id));
    ++(decodes ? status.waiting_for.decode : status.waiting_for.prefill);
  }
  return status;
}

}  // namespace millrace::cluster
