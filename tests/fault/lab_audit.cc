// The checks and their times: cheap ones after each event, each block at intervals, members and
// owners on ticks, leftovers at the end.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/fault/lab.h"

namespace millrace::sim::fault {
namespace {

constexpr size_t kConnectionsMax = 400;
// Faults are over, some request waits, and nothing was delivered for this long.
constexpr Duration kStarved = Duration::Seconds(20);
// Time after the last request has ended and the last fault is over: leases expire, silent workers
// are declared lost, the remaining ones join again.
constexpr Duration kSettle = Duration::Seconds(9);
// Requests that are still open this long after the faults are hung.
constexpr Duration kEndsWithin = Duration::Seconds(60);

}  // namespace

void Lab::AuditEvent(int place) {
  if (place == 0) {
    if (controller_.alive()) AuditController();
  } else if (const Worker* worker = processes_[place].worker.get()) {
    AuditWorker(*worker);
  }
  if (clients_.open() > 0 || now_ < scenario_.quiet_at || ending_) return;
  ending_ = true;
  events_.Push(now_ + kSettle, {.kind = Event::Kind::kEnd});
}

void Lab::AuditController() {
  const cluster::ControllerCore& c = controller_.controller();
  if (++audits_ % static_cast<uint64_t>(options_.audit_every) == 0) c.CheckIntegrity();
  if (c.requests() > clients_.size()) {
    Broken(Invariant::kQueuesBounded, fmt::format("{} requests are known", c.requests()));
  }
}

void Lab::AuditWorker(const Worker& worker) {
  const cluster::WorkerCore& core = worker.core();
  for (const auto& [id, stage] : worker.shards()) {
    if (stage->refused_writes() == 0) continue;
    Broken(Invariant::kFence,
           fmt::format("worker {}: a write into a pipeline that is closed", worker.name()));
  }
  if (!core.batch_running() && worker.pipelines_open() > core.pipelines()) {
    Broken(Invariant::kFence,
           fmt::format("worker {}: {} pipelines are open in its stages, {} in its core",
                       worker.name(), worker.pipelines_open(), core.pipelines()));
  }
  if (core.pipelines() > cluster::WorkerCoreOptions::kPipelinesMax ||
      core.shards() > cluster::WorkerCoreOptions::kShardsMax ||
      network_.connections_live() > kConnectionsMax) {
    Broken(Invariant::kQueuesBounded,
           fmt::format("worker {}: {} pipelines, {} shards, {} connections", worker.name(),
                       core.pipelines(), core.shards(), network_.connections_live()));
  }
}

void Lab::AuditTick() {
  const cluster::ControllerCore& c = controller_.controller();
  const cluster::ClusterStatus status = c.Describe(now_);
  if (status.workers.size() != controller_.sessions().size()) {
    Broken(Invariant::kMembersAreSessions,
           fmt::format("{} members, {} current sessions", status.workers.size(),
                       controller_.sessions().size()));
  }
  for (NetworkConnectionId session : controller_.sessions()) {
    if (!network_.open(session, 0)) {
      Broken(Invariant::kMembersAreSessions, "a member's connection is gone");
    }
  }
  std::set<RequestId> running;
  for (const sched::RequestInfo& info : c.InspectAll(now_)) {
    if (info.state != sched::RequestState::kRunning || running.insert(info.id).second) continue;
    Broken(Invariant::kOneOwner, fmt::format("request {} runs in two pipelines", info.id.value()));
  }
  if (clients_.open() == 0) return;
  const Time since = std::max(scenario_.quiet_at, clients_.last_output());
  if (now_ - since > kStarved) {
    Broken(Invariant::kNoStarvation, OpenRequests());
  }
  if (now_ - scenario_.quiet_at > kEndsWithin) {
    Broken(Invariant::kEndsInTime, OpenRequests());
  }
}

std::string Lab::OpenRequests() const {
  std::string text;
  for (size_t q = 0; q < clients_.size(); ++q) {
    if (!clients_.ended(q)) text += clients_.Describe(q) + "; ";
  }
  if (!controller_.alive()) return text + "no controller";
  for (const auto& info : controller_.controller().InspectAll(now_)) {
    text += fmt::format("\n  request {}: state {}, {} computed, {}", info.id.value(),
                        static_cast<int>(info.state), info.computed_tokens, info.waits_for);
  }
  const cluster::ClusterStatus status = controller_.controller().Describe(now_);
  text +=
      fmt::format("\n  missing: {}; not up: {}; changing: {}", status.missing.value_or("nothing"),
                  status.degraded.value_or("nothing"), status.changing);
  for (const auto& worker : status.workers) {
    text += fmt::format("\n  worker {}{}: {} layer ranges, {} batches, {}", worker.name,
                        worker.draining ? " (draining)" : "", worker.layers.size(), worker.batches,
                        worker.note);
  }
  for (const auto& pipeline : status.pipelines) {
    text += fmt::format("\n  pipeline {}: open {}, retiring {}, {} requests, {} of {} blocks",
                        pipeline.id.value(), pipeline.open, pipeline.retiring, pipeline.requests,
                        pipeline.blocks_used, pipeline.blocks_total);
  }
  return text;
}

void Lab::AuditEnd() {
  if (!controller_.alive()) return Broken(Invariant::kMembersAreSessions, "no controller");
  const cluster::ControllerCore& c = controller_.controller();
  c.CheckIntegrity();
  const sched::SchedulerStats stats = c.Stats();
  if (c.requests() != 0 || stats.running + stats.waiting + stats.pulling != 0) {
    Broken(Invariant::kNothingLeft,
           fmt::format("{} requests, {} run, {} wait, {} pull", c.requests(), stats.running,
                       stats.waiting, stats.pulling));
  }
  if (stats.blocks_free != stats.blocks_total || stats.blocks_pinned + stats.blocks_pending != 0) {
    Broken(Invariant::kNothingLeft,
           fmt::format("{} of {} blocks are free, {} pinned, {} pending", stats.blocks_free,
                       stats.blocks_total, stats.blocks_pinned, stats.blocks_pending));
  }
  const cluster::ClusterStatus status = c.Describe(now_);
  // A plan that needs a worker which is being drained waits for another worker. So does the
  // current plan if a worker cannot load its layers.
  const bool drains = std::ranges::any_of(status.workers, &cluster::WorkerStatus::draining);
  const bool unusable =
      std::ranges::any_of(status.workers, [](const auto& w) { return !w.usable; });
  // With two classes an automatic layout may be larger than either can fill, and a class cannot
  // take over a pipeline without memory for it. Requests are served nevertheless.
  const bool may_lack = scenario_.classes > 1 && (!scenario_.plan || scenario_.tight_memory);
  const auto lacking = status.missing || may_lack ? status.missing : status.degraded;
  if ((lacking && !unusable) || (status.changing && !drains)) {
    Broken(Invariant::kShardsArePlanned,
           fmt::format("missing: {}; changing: {}", lacking.value_or("nothing"), status.changing));
  }
  AuditEndWorkers(status);
  const ControllerTotals t = controller_.Totals();
  if (scenario_.faults.empty() && scenario_.autopilot) {
    if (t.workers_lost + t.joins_refused != 0) {
      Broken(Invariant::kDecisionsKeepWorkers,
             fmt::format("{} workers lost, {} refused after {} changes of the plan", t.workers_lost,
                         t.joins_refused, controller_.autopilot_changes()));
    }
  } else if (scenario_.faults.empty()) {
    if (t.pipelines_lost + t.replays + t.workers_lost + t.joins_refused + clients_.errors() != 0) {
      Broken(Invariant::kNoFaultNoLoss,
             fmt::format("{} pipelines and {} workers lost, {} replays, {} errors",
                         t.pipelines_lost, t.workers_lost, t.replays, clients_.errors()));
    }
  }
}

// Of several processes with one name, one is a member; the others keep retrying.
void Lab::AuditEndWorkers(const cluster::ClusterStatus& status) {
  std::map<std::string, int> members;
  for (int place = 1; place < scenario_.places(); ++place) {
    const Worker* worker = processes_[place].worker.get();
    if (!worker) continue;
    int& of_name = members[worker->name()];
    const auto member =
        std::ranges::find(status.workers, worker->name(), &cluster::WorkerStatus::name);
    if (!worker->core().welcomed() || member == status.workers.end()) continue;
    ++of_name;
    AuditEndWorker(*worker, *member, status);
  }
  for (const auto& [name, count] : members) {
    if (count == 1) continue;
    Broken(Invariant::kMembersAreSessions,
           fmt::format("{} processes called {} are members", count, name));
  }
  if (members.size() != status.workers.size() || std::ssize(members) != scenario_.workers) {
    Broken(Invariant::kMembersAreSessions,
           fmt::format("{} workers run, {} are members", members.size(), status.workers.size()));
  }
}

void Lab::AuditEndWorker(const Worker& worker, const cluster::WorkerStatus& member,
                         const cluster::ClusterStatus& status) {
  const size_t shards = worker.core().shards() - worker.core().orphans();
  const bool settled = !status.changing;  // otherwise it also holds shards for the next plan
  if ((settled && shards != member.layers.size()) || worker.stages() != worker.core().shards()) {
    Broken(Invariant::kShardsArePlanned,
           fmt::format("worker {} holds {} shards ({} of earlier sessions, {} loaded), planned are "
                       "{}",
                       worker.name(), worker.core().shards(), worker.core().orphans(),
                       worker.stages(), member.layers.size()));
  }
  size_t pipelines = 0;
  for (const cluster::PipelineStatus& pipeline : status.pipelines) {
    pipelines += static_cast<size_t>(std::ranges::count(pipeline.workers, worker.name()));
  }
  // The status lists only rank 0 of each stage.
  const bool counts = scenario_.shape.tensor_parallel == 1;
  if ((counts && worker.pipelines_open() != pipelines) ||
      worker.exposures() + worker.pulls() != 0) {
    Broken(Invariant::kNothingLeft,
           fmt::format("worker {}: {} pipelines open, {} known to the controller; {} exports, {} "
                       "pulls",
                       worker.name(), worker.pipelines_open(), pipelines, worker.exposures(),
                       worker.pulls()));
  }
}

LabReport Lab::Report() {
  for (int place = 1; place < scenario_.places(); ++place) CountWorker(place);
  report_.violation = violation_;
  report_.events = event_;
  report_.messages = network_.messages();
  report_.duplicates = network_.duplicates();
  report_.tokens = clients_.tokens();
  report_.errors = clients_.errors();
  report_.operations_refused = controller_.operations_refused();
  report_.virtual_s = static_cast<double>(now_.ns) * 1e-9;
  report_.controller = controller_.Totals();
  report_.autopilot_changes = controller_.autopilot_changes();
  return report_;
}

void Lab::CountWorker(int place) {
  const Worker* worker = processes_[place].worker.get();
  if (!worker) return;
  const cluster::WorkerCounters& counters = worker->core().counters();
  report_.batches += counters.batches;
  report_.stale_at_workers +=
      counters.stale_steps + counters.stale_activations + counters.stale_orders;
  report_.pulls_served += worker->audit().pulls_served;
  report_.pulls_failed += worker->audit().pulls_failed;
  report_.collectives += worker->audit().collectives;
}

}  // namespace millrace::sim::fault
