// The controller's status and counters, and its integrity check.
#include "cluster/control/controller_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/slot_assignment.h"

namespace millrace::cluster {
namespace {

using Counters = ControllerCounters;

constexpr auto kCounters = std::to_array<ControllerCounter>({
    {"joins", "millrace_cluster_worker_joins_total", "Workers that joined.", &Counters::joins},
    {"joins_refused", "millrace_cluster_worker_joins_refused_total",
     "Joins that were refused: different model or version, or name already in use.",
     &Counters::joins_refused},
    {"workers_lost", "millrace_cluster_workers_lost_total",
     "Workers that left or were lost, including drained ones.", &Counters::workers_lost},
    {"pipelines_opened", "millrace_cluster_pipelines_opened_total",
     "Pipelines opened over workers.", &Counters::pipelines_opened},
    {"pipelines_lost", "millrace_cluster_pipelines_lost_total",
     "Pipelines lost with a worker, a connection or a failed step.", &Counters::pipelines_lost},
    {"layouts", "millrace_cluster_plans_begun_total",
     "Plans that were begun, including automatic ones.", &Counters::layouts},
    {"plans_applied", "millrace_cluster_plans_applied_total", "Plans that came into force.",
     &Counters::plans_applied},
    {"plans_given_up", "millrace_cluster_plans_given_up_total",
     "Plans that were given up because they could not be loaded.", &Counters::plans_given_up},
    {"replays", "millrace_cluster_replays_total",
     "Requests that lost their pipeline and continued in another from the tokens they had.",
     &Counters::replays},
    {"fetched", "millrace_cluster_replays_with_kv_total",
     "Replays that fetched KV from surviving workers.", &Counters::fetched},
    {"computed_in_part", "millrace_cluster_replays_in_part_total",
     "Replays with KV that computed only some layers again.", &Counters::computed_in_part},
    {"failed_by_losses", "millrace_cluster_requests_failed_by_losses_total",
     "Requests that failed because pipelines were lost repeatedly while they ran.",
     &Counters::failed_by_losses},
    {"expired", "millrace_cluster_requests_expired_total",
     "Requests that failed because they waited too long for workers.", &Counters::expired},
    {"evictions", "millrace_cluster_evictions_total",
     "Requests that gave their KV memory to older requests of other pipelines and were computed "
     "again.",
     &Counters::evictions},
    {"moves", "millrace_cluster_moves_total",
     "Moves of a request and its KV to another pipeline that were begun.", &Counters::moves},
    {"moves_failed", "millrace_cluster_moves_failed_total",
     "Moves that failed; the request continued without that KV.", &Counters::moves_failed},
    {"moved_bytes", "millrace_cluster_moved_bytes_total", "Bytes of KV that workers pulled.",
     &Counters::moved_bytes},
    {"pulls_failed", "millrace_cluster_pulls_failed_total",
     "Pulls of KV that a worker could not complete.", &Counters::pulls_failed},
    {"leases_renewed", "millrace_cluster_kv_leases_renewed_total",
     "Leases on KV that were renewed because the puller is alive.", &Counters::leases_renewed},
    {"profiles_refused", "millrace_cluster_profiles_refused_total",
     "Profiles of workers that were not used: damaged, of another model, or not plausible.",
     &Counters::profiles_refused},
    {"links_probed", "millrace_cluster_links_probed_total",
     "Links between workers that were measured.", &Counters::links_probed},
    {"probes_failed", "millrace_cluster_link_probes_failed_total",
     "Measurements of links that failed or gave numbers that no link has.",
     &Counters::probes_failed},
    {"stale_messages", "millrace_cluster_stale_messages_total",
     "Messages dropped because their session, pipeline or transfer no longer exists.",
     &Counters::stale_messages},
});
static_assert(sizeof(Counters) == kCounters.size() * sizeof(uint64_t), "a counter is not listed");

}  // namespace

std::span<const ControllerCounter> AllControllerCounters() { return kCounters; }

std::optional<std::string> ControllerCore::Missing() const {
  if (members_.all().empty()) return "No worker has joined yet.";
  return layout().Missing();
}

ControllerCounters ControllerCore::counters() const {
  ControllerCounters counters = counters_;
  counters.pipelines_opened = pipelines_.opened();
  counters.layouts = static_cast<uint64_t>(deployment_.newest_epoch());
  counters.plans_applied = deployment_.applied();
  counters.plans_given_up = deployment_.given_up_count();
  const TransferCounters& transfers = transfers_.counters();
  counters.replays += transfers.recomputed;
  counters.fetched = transfers.fetched;
  counters.computed_in_part = transfers.computed_in_part;
  counters.moves = transfers.moves;
  counters.moves_failed = transfers.moves_failed;
  counters.moved_bytes = transfers.moved_bytes;
  counters.pulls_failed = transfers.pulls_failed;
  counters.leases_renewed = transfers.leases_renewed;
  counters.profiles_refused = machines_.profiles_refused();
  counters.links_probed = machines_.links_probed();
  counters.probes_failed = machines_.probes_failed();
  counters.stale_messages += machines_.stale();
  return counters;
}

ClusterStatus ControllerCore::Describe(Time now) const {
  ClusterStatus status{.term = options_.term,
                       .epoch = layout().plan.epoch,
                       .plan = layout().plan,
                       .missing = Missing(),
                       .degraded = layout().Degraded(),
                       .changing = deployment_.changing(),
                       .given_up = given_up(),
                       .links = machines_.Links(now),
                       .requests = static_cast<int64_t>(requests_.size()),
                       .waiting = static_cast<int64_t>(requests_.waiting()),
                       .moving = transfers_.moving(),
                       .cross_class_replay = options_.cross_class_replay,
                       .counters = counters()};
  for (const auto& [id, worker] : members_.all()) {
    WorkerStatus& w = status.workers.emplace_back();
    w.id = id;
    w.name = worker.join.name;
    w.device = worker.join.device;
    w.control = worker.address.control;
    w.usable = worker.unusable.empty();
    w.note = w.usable ? WhyNoSlot(layout(), members_, worker) : worker.unusable;
    w.fingerprint = members_.FingerprintOf(worker.bits);
    w.draining = worker.draining;
    w.memory_bytes = worker.join.memory_bytes;
    w.batches = worker.beat.steps_done;
    w.silent = now - worker.last_beat;
    w.numeric_class = worker.join.identity.numeric_class;
    w.host_id = worker.address.host_id;
    w.machine = worker.join.machine;
    w.profile = worker.profile;
    for (const LayoutStage& stage : layout().stages) {
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
  for (const auto& [id, pipeline] : pipelines_.all()) {
    PipelineStatus& l = status.pipelines.emplace_back();
    l.id = id;
    for (size_t hop = 0; hop < pipeline.hops.size(); ++hop) {
      l.workers.push_back(members_.at(pipeline.workers[hop].front()).join.name);
      l.layers.push_back(pipeline.hops[hop].layers);
    }
    l.role = pipeline.role;
    l.fingerprint = members_.FingerprintOf(pipeline.bits);
    l.numeric_class = members_.NumericClassOf(pipeline.bits);
    l.open = pipeline.open;
    l.retiring = pipeline.retiring;
    l.requests = static_cast<int64_t>(pipeline.requests.size());
    l.blocks_total = memory_.limit(id);
    l.blocks_used = pipeline.scheduler->blocks_in_use();
  }
  status.edges = DescribeEdges();
  return status;
}

std::vector<EdgeStatus> ControllerCore::DescribeEdges() const {
  const std::vector<double> tokens = placements_.edge_tokens();
  const auto name = [&](const std::optional<int>& stage) -> std::string {
    if (!stage) return "coordinator";
    const std::optional<WorkerId>& worker =
        layout().stages[static_cast<size_t>(*stage)].ranks.front().worker;
    return worker ? members_.at(*worker).join.name : fmt::format("stage {}", *stage);
  };
  std::vector<EdgeStatus> edges;
  for (size_t e = 0; e < tokens.size() && edges.size() < EdgeStatus::kShownMax; ++e) {
    const PlanEdge& edge = layout().plan.edges[e];
    if (edge.phase == EdgePhase::kHandOver) continue;
    const double planned = layout().states_flow ? edge.tokens_per_s : 0;
    edges.push_back(
        {name(edge.from), name(edge.to), edge.phase, planned, static_cast<int64_t>(tokens[e])});
  }
  return edges;
}

sched::SchedulerStats ControllerCore::Stats() const {
  sched::SchedulerStats sum = pipelines_.Stats();
  sum.waiting += static_cast<int>(requests_.waiting());
  return sum;
}

std::optional<sched::RequestInfo> ControllerCore::Inspect(RequestId id, Time now) const {
  const Request* request = requests_.Find(id);
  if (request == nullptr) return std::nullopt;
  if (request->pipeline) return pipelines_.at(*request->pipeline).scheduler->Inspect(id, now);
  sched::RequestInfo info;
  info.id = id;
  info.age = now - request->arrived;
  info.prompt_tokens = request->prompt_tokens();
  info.output_tokens = static_cast<int>(request->delivered);
  info.waits_for =
      placements_.LacksClass(*request) ? WhyItWaits(*request) : Missing().value_or("a pipeline");
  return info;
}

std::vector<sched::RequestInfo> ControllerCore::InspectAll(Time now) const {
  std::vector<sched::RequestInfo> all;
  for (const auto& [id, request] : requests_.all()) {
    if (auto info = Inspect(id, now)) all.push_back(std::move(*info));
  }
  std::ranges::sort(all, {}, &sched::RequestInfo::id);
  return all;
}

std::optional<sched::RequestInfo> ControllerCore::Stalled(Time now) const {
  return pipelines_.Stalled(now);
}

void ControllerCore::CheckIntegrity() const {
  for (const auto& [id, pipeline] : pipelines_.all()) {
    for (RequestId request : pipeline.requests.Ids()) {
      const Request* found = requests_.Find(request);
      MR_CHECK(found != nullptr && found->pipeline == id)
          << "pipeline " << id << " has request " << request << ", which is not in it";
    }
  }
  requests_.CheckIntegrity();
  for (const auto& [id, request] : requests_.all()) {
    if (!request.pipeline) continue;
    MR_CHECK(pipelines_.contains(*request.pipeline) &&
             pipelines_.at(*request.pipeline).requests.contains(id))
        << "request " << id << " is in a pipeline that does not know it";
  }
  transfers_.CheckIntegrity();
  members_.CheckIntegrity();
  pipelines_.CheckIntegrity();
  deployment_.CheckIntegrity();
  memory_.CheckIntegrity();
}

}  // namespace millrace::cluster
