// What is checked, and when: after each event what is cheap, every so often each block, on ticks
// who is who, at the end that nothing is left behind.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/fault/lab.h"

namespace millrace::sim::fault {
namespace {

constexpr size_t kConnectionsMax = 400;
// Faults are over, somebody waits, and nobody has been told anything for so long.
constexpr Duration kStarved = Duration::Seconds(20);
// After the last request has ended and the last fault is over: leases run out, the silent are
// missed, whoever is left joins again.
constexpr Duration kSettle = Duration::Seconds(9);
// When quiet, whoever is open by then has hung.
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
  const cluster::Controller& c = controller_.controller();
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
           fmt::format("worker {}: a write into a lane that is closed", worker.name()));
  }
  if (!core.batch_running() && worker.lanes_open() > core.lanes()) {
    Broken(Invariant::kFence,
           fmt::format("worker {}: {} lanes are open in its stages, {} in its mind", worker.name(),
                       worker.lanes_open(), core.lanes()));
  }
  if (core.lanes() > cluster::WorkerCoreOptions::kLanesMax ||
      core.shards() > cluster::WorkerCoreOptions::kShardsMax ||
      network_.connections_live() > kConnectionsMax) {
    Broken(Invariant::kQueuesBounded,
           fmt::format("worker {}: {} lanes, {} shards, {} connections", worker.name(),
                       core.lanes(), core.shards(), network_.connections_live()));
  }
}

void Lab::AuditTick() {
  const cluster::Controller& c = controller_.controller();
  const cluster::ClusterStatus status = c.Describe(now_);
  if (status.workers.size() != controller_.sessions().size()) {
    Broken(Invariant::kMembersAreSessions,
           fmt::format("{} members, {} sessions in force", status.workers.size(),
                       controller_.sessions().size()));
  }
  for (ConnectionId session : controller_.sessions()) {
    if (!network_.open(session, 0)) {
      Broken(Invariant::kMembersAreSessions, "a member's connection is gone");
    }
  }
  std::set<RequestId> running;
  for (const sched::RequestInfo& info : c.InspectAll(now_)) {
    if (info.state != sched::RequestState::kRunning || running.insert(info.id).second) continue;
    Broken(Invariant::kOneOwner, fmt::format("request {} runs in two lanes", info.id.value()));
  }
  if (clients_.open() == 0) return;
  const Time since = std::max(scenario_.quiet_at, clients_.last_news());
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
  text += fmt::format("\n  missing: {}; changing: {}", status.missing.value_or("nothing"),
                      status.changing);
  for (const auto& worker : status.workers) {
    text += fmt::format("\n  worker {}{}: {} layer ranges, {} batches, {}", worker.name,
                        worker.draining ? " (draining)" : "", worker.layers.size(), worker.batches,
                        worker.note);
  }
  for (const auto& lane : status.lanes) {
    text += fmt::format("\n  lane {}: open {}, retiring {}, {} requests, {} of {} blocks",
                        lane.id.value(), lane.open, lane.retiring, lane.requests, lane.blocks_used,
                        lane.blocks_total);
  }
  return text;
}

void Lab::AuditEnd() {
  if (!controller_.alive()) return Broken(Invariant::kMembersAreSessions, "no controller");
  const cluster::Controller& c = controller_.controller();
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
  // A plan that needs a worker which an operator drains waits for another one.
  const bool drains = std::ranges::any_of(status.workers, &cluster::WorkerStatus::draining);
  if (status.missing || (status.changing && !drains)) {
    Broken(Invariant::kShardsArePlanned,
           fmt::format("missing: {}; changing: {}", status.missing.value_or("nothing"),
                       status.changing));
  }
  AuditEndWorkers(status);
  if (scenario_.faults.empty()) {
    const ControllerTotals t = controller_.Totals();
    if (t.lanes_lost + t.replays + t.workers_lost + t.joins_refused + clients_.errors() != 0) {
      Broken(Invariant::kNoFaultNoLoss,
             fmt::format("{} lanes and {} workers lost, {} replays, {} errors", t.lanes_lost,
                         t.workers_lost, t.replays, clients_.errors()));
    }
  }
}

// Of several processes with one name one is a member; the others keep asking.
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
  const bool settled = !status.changing;  // else it holds what the next plan wants as well
  if ((settled && shards != member.layers.size()) || worker.stages() != worker.core().shards()) {
    Broken(Invariant::kShardsArePlanned,
           fmt::format("worker {} holds {} shards ({} of earlier sessions, {} loaded), planned are "
                       "{}",
                       worker.name(), worker.core().shards(), worker.core().orphans(),
                       worker.stages(), member.layers.size()));
  }
  size_t lanes = 0;
  for (const cluster::LaneStatus& lane : status.lanes) {
    lanes += static_cast<size_t>(std::ranges::count(lane.workers, worker.name()));
  }
  // Ranks above the first are not in the status.
  const bool counts = scenario_.tensor_parallel == 1;
  if ((counts && worker.lanes_open() != lanes) || worker.exposures() + worker.pulls() != 0) {
    Broken(
        Invariant::kNothingLeft,
        fmt::format("worker {}: {} lanes open, {} known to the controller; {} exposures, {} "
                    "pulls",
                    worker.name(), worker.lanes_open(), lanes, worker.exposures(), worker.pulls()));
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
  return report_;
}

void Lab::CountWorker(int place) {
  const Worker* worker = processes_[place].worker.get();
  if (!worker) return;
  const cluster::WorkerCounters& counters = worker->core().counters();
  report_.batches += counters.batches;
  report_.stale_at_workers += counters.stale_steps + counters.stale_rows + counters.stale_orders;
  report_.pulls_served += worker->audit().pulls_served;
  report_.pulls_failed += worker->audit().pulls_failed;
  report_.collectives += worker->audit().collectives;
}

}  // namespace millrace::sim::fault
