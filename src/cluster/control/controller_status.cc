// The controller's counters, its requests one by one, and its integrity check.
#include "cluster/control/controller_status.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/layout/slot_assignment.h"

namespace millrace::cluster {
namespace {

std::optional<std::string> WhatIsMissing(const Membership& members, const Layout& layout,
                                         const Pipelines& pipelines) {
  if (members.all().empty()) return "No worker has joined yet.";
  if (auto missing = layout.Missing()) return missing;
  const auto closed = pipelines.WhyClosed(layout);
  return closed ? std::optional(closed->why) : std::nullopt;
}

ControllerCounters WithParts(ControllerCounters counters, const Pipelines& pipelines,
                             const Deployment& deployment, const Transfers& transfers,
                             const MachineReports& machines) {
  counters.pipelines_opened = pipelines.opened();
  counters.layouts = static_cast<uint64_t>(deployment.newest_epoch());
  counters.plans_applied = deployment.applied();
  counters.plans_given_up = deployment.given_up_count();
  counters.replays += transfers.recomputed();
  static_cast<TransferCounters&>(counters) = transfers.counters();
  counters.profiles_refused = machines.profiles_refused();
  counters.links_probed = machines.links_probed();
  counters.probes_failed = machines.probes_failed();
  counters.stale_messages += machines.stale();
  return counters;
}

}  // namespace

std::optional<std::string> ControllerCore::Missing() const {
  return WhatIsMissing(members_, layout(), pipelines_);
}

ControllerCounters ControllerCore::counters() const {
  return WithParts(counters_, pipelines_, deployment_, transfers_, machines_);
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

std::optional<TimeAccount> ControllerCore::Account(RequestId id, Time now) const {
  const Request* request = requests_.Find(id);
  const bool runs = request != nullptr && request->pipeline;
  return runs ? pipelines_.at(*request->pipeline).scheduler->Account(id, now)
              : requests_.AccountOfWaiting(id, now);
}

std::vector<sched::RequestInfo> ControllerCore::InspectAll(Time now) const {
  std::vector<sched::RequestInfo> all;
  for (const auto& [id, request] : requests_.all()) {
    if (auto info = Inspect(id, now)) all.push_back(std::move(*info));
  }
  std::ranges::sort(all, {}, &sched::RequestInfo::id);
  return all;
}

std::optional<StalledRequest> ControllerCore::Stalled(Time now) const {
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
  for (const auto& [id, worker] : members_.all()) {
    MR_CHECK(!worker.draining || worker.leaving() || worker.drain_ordered ||
             deployment_.told_to_leave(id))
        << "worker " << id << " drains, and nothing calls for it";
  }
  pipelines_.CheckIntegrity();
  deployment_.CheckIntegrity();
  memory_.CheckIntegrity();
}

}  // namespace millrace::cluster
