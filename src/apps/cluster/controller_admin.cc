#include "apps/cluster/controller_admin.h"

#include <utility>
#include <vector>

#include "apps/cluster/cluster_metrics.h"
#include "apps/cluster/cluster_view.h"
#include "base/log.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

std::string StateOf(const cluster::WorkerStatus& worker) {
  if (!worker.usable) return "unusable";
  if (worker.draining) return "draining";
  return worker.layers.empty() ? "idle" : "serving";
}

WorkerView ViewOf(const cluster::WorkerStatus& worker) {
  WorkerView view = {.name = worker.name,
                     .address = worker.control,
                     .device = worker.device,
                     .state = StateOf(worker),
                     .note = worker.note,
                     .layers = worker.layers,
                     .rank = worker.rank,
                     .ranks = worker.ranks,
                     .weight_bytes = worker.weight_bytes,
                     .kv_bytes = worker.kv_bytes,
                     .batches = static_cast<int64_t>(worker.batches),
                     .silent_s = worker.silent.seconds(),
                     .memory_bytes = worker.memory_bytes,
                     .machine = worker.machine,
                     .numeric_class = worker.numeric_class,
                     .fingerprint = worker.fingerprint};
  if (worker.notice) {
    const NoticeOrigin& origin = worker.notice->origin;
    view.notice = {.source = std::string(NoticeSourceName(origin.source)),
                   .kind = std::string(NoticeKindName(origin.kind)),
                   .leaves = worker.notice->hard};
    if (worker.notice_left) view.notice->in_s = worker.notice_left->seconds();
  }
  if (worker.profile) {
    const cost::ProfileRates rates = cost::RatesOf(*worker.profile);
    view.prefill_tokens_per_s = rates.prefill_tokens_per_s;
    view.decode_tokens_per_s = rates.decode_tokens_per_s;
  }
  return view;
}

MachineView MachineOf(const cluster::WorkerStatus& worker) {
  MachineView view = {.name = worker.name,
                      .device = worker.device,
                      .host = worker.host_id,
                      .numeric_class = worker.numeric_class,
                      .memory_bytes = worker.memory_bytes,
                      .machine = worker.machine};
  if (worker.profile) view.profile = cost::FormatProfileLine(*worker.profile);
  return view;
}

PipelineView ViewOf(const cluster::PipelineStatus& pipeline) {
  return {.id = static_cast<int64_t>(pipeline.id.value()),
          .workers = pipeline.workers,
          .layers = pipeline.layers,
          .role = std::string(plan::RoleName(pipeline.role)),
          .state = pipeline.retiring ? "retiring"
                   : pipeline.open   ? "open"
                                     : "opening",
          .numeric_class = pipeline.numeric_class,
          .fingerprint = pipeline.fingerprint,
          .requests = pipeline.requests,
          .blocks_total = pipeline.blocks_total,
          .blocks_used = pipeline.blocks_used};
}

StageView ViewOf(const cluster::StageStatus& stage) {
  return {.workers = stage.workers,
          .layers = stage.layers,
          .role = std::string(plan::RoleName(stage.role)),
          .up = stage.up,
          .kv_blocks = stage.kv_blocks,
          .kv_blocks_used = stage.kv_blocks_used,
          .running = stage.running,
          .waiting = stage.waiting};
}

EdgeView ViewOf(const cluster::EdgeStatus& edge) {
  const cluster::EdgeFlows::Flow& flow = edge.since_plan;
  EdgeView view = {.from = edge.from,
                   .to = edge.to,
                   .phase = std::string(plan::PhaseName(edge.phase)),
                   .planned_tokens_per_s = edge.planned_tokens_per_s,
                   .tokens = flow.tokens,
                   .requests = flow.requests};
  if (edge.phase == EdgePhase::kHandOver) {
    view.bytes = flow.bytes;
    view.seconds = flow.seconds;
    view.bytes_per_s.emplace();
    if (flow.seconds > 0) *view.bytes_per_s = static_cast<double>(flow.bytes) / flow.seconds;
  }
  return view;
}

LinkView ViewOf(const cluster::LinkStatus& link) {
  return {link.from, link.to, link.latency_s, link.bytes_per_s, link.age.seconds()};
}

template <typename All>
auto ViewsOf(const All& all) {
  std::vector<decltype(ViewOf(all.front()))> views;
  for (const auto& each : all) views.push_back(ViewOf(each));
  return views;
}

}  // namespace

Json StatusJson(const std::string& model, const cluster::ClusterStatus& status) {
  ClusterView view = {.model = model,
                      .term = static_cast<int64_t>(status.term.value()),
                      .epoch = status.epoch,
                      .missing = status.missing,
                      .degraded = status.degraded,
                      .changing = status.changing,
                      .given_up = status.given_up,
                      .workers = ViewsOf(status.workers),
                      .still = status.still,
                      .pipelines = ViewsOf(status.pipelines),
                      .stages = ViewsOf(status.stages),
                      .links = ViewsOf(status.links),
                      .requests = status.requests,
                      .waiting = status.waiting,
                      .moving = status.moving,
                      .waiting_for = status.waiting_for,
                      .cross_class_replay = status.cross_class_replay,
                      .server = status.server};
  for (const auto& edge : status.edges) {
    if (edge.planned || edge.since_plan.requests > 0) view.edges.push_back(ViewOf(edge));
  }
  std::erase_if(view.links, [](const LinkView& link) {
    return link.from != kControllerEnd && link.to != kControllerEnd;
  });
  for (const auto& counter : cluster::AllControllerCounters()) {
    view.counters[counter.name] = static_cast<int64_t>(status.counters.*counter.value);
  }
  return WriteJson(std::move(view));
}

MachinesView MachinesOf(const cluster::ClusterStatus& status) {
  MachinesView view = {.links = ViewsOf(status.links), .server = status.server};
  for (const auto& worker : status.workers) view.machines.push_back(MachineOf(worker));
  return view;
}

ControllerAdmin::ControllerAdmin(cluster::ControllerHost& host, std::string model,
                                 std::unique_ptr<ops::KeptPlan> kept)
    : host_(host), model_(std::move(model)), kept_(std::move(kept)) {
  if (!kept_) return;
  host_.OnPlanSettled([this](int64_t epoch, bool in_force) {
    settling_.Put([=, this] { Settle(epoch, in_force); });
  });
}

Json ControllerAdmin::Describe() {
  Json status = StatusJson(model_, host_.Describe());
  const MutexLock lock(adding_);
  for (const AdminAdditions& added : additions_) added.status(status);
  return status;
}

Json ControllerAdmin::Decisions() {
  const MutexLock lock(adding_);
  for (const AdminAdditions& added : additions_) {
    if (added.decisions) return added.decisions();
  }
  return Json::object();
}

std::vector<serve::ClusterMetric> ControllerAdmin::Metrics() {
  std::vector<serve::ClusterMetric> metrics = ClusterMetrics(host_.Describe());
  const MutexLock lock(adding_);
  for (const AdminAdditions& added : additions_) added.metrics(metrics);
  return metrics;
}

Result<int64_t> ControllerAdmin::ApplyPlan(WorkerPlan plan, std::string as_sent) {
  const MutexLock lock(applying_);  // a plan is written before it is settled
  if (kept_ && as_sent.empty()) as_sent = plan::WritePlanYaml(plan);
  int64_t epoch = 0;
  MR_RETURN_IF_ERROR(host_.ApplyPlan(std::move(plan.plan), std::move(plan.workers), &epoch));
  if (!kept_) return epoch;
  MR_RETURN_IF_ERROR(kept_->Write(as_sent, epoch)
                         .WithContext("the change to the plan has begun, but the next controller "
                                      "will not know of it"));
  return epoch;
}

void ControllerAdmin::Settle(int64_t epoch, bool in_force) {
  const MutexLock lock(applying_);
  if (const Status settled = kept_->Settle(epoch, in_force); !settled.ok()) {
    MR_LOG(error, "the next controller may start with the plan that was given up: {}",
           settled.message());
  }
}

}  // namespace millrace::apps
