// Creation, operators' calls, time.
#include "cluster/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace millrace::cluster {

Result<std::unique_ptr<Controller>> Controller::Create(ControllerOptions options, Time now) {
  if (options.num_layers < 1) return InvalidArgument("a model without layers");
  options.scheduler.stages = 1;
  if (options.scheduler.num_host_blocks == 0) {
    options.scheduler.preemption = sched::PreemptionMode::kRecompute;
  }
  const bool automatic = !options.plan.has_value();
  const int stages = std::clamp(options.stages, 1, options.num_layers);
  Plan plan = automatic
                  ? EvenPlan(options.model, options.num_layers, stages, options.tensor_parallel)
                  : *options.plan;
  if (plan.num_layers != options.num_layers) {
    return InvalidArgument(fmt::format("the plan is for {} layers, the model has {}",
                                       plan.num_layers, options.num_layers));
  }
  MR_ASSIGN_OR_RETURN(Layout layout, MakeLayout(std::move(plan), options.node_names));
  layout.automatic = automatic;
  std::unique_ptr<Controller> controller(new Controller(std::move(options), std::move(layout)));
  MR_RETURN_IF_ERROR(controller->Prepare(std::move(controller->layout_), now));
  return controller;
}

Controller::Controller(ControllerOptions options, Layout layout)
    : options_(std::move(options)), layout_(std::move(layout)) {}

Controller::~Controller() = default;

void Controller::Receive(ConnectionId from, ToController message, Time now) {
  if (!connections_.contains(from) && !std::holds_alternative<Join>(message)) {
    ++counters_.stale_messages;  // of a worker that was given up
    return;
  }
  std::visit([&](const auto& m) { On(from, m, now); }, message);
}

Status Controller::ApplyPlan(Plan plan, std::vector<std::string> node_names, Time now) {
  if (plan.num_layers != options_.num_layers) {
    return InvalidArgument(fmt::format("the plan is for {} layers, the model has {}",
                                       plan.num_layers, options_.num_layers));
  }
  MR_ASSIGN_OR_RETURN(Layout layout, MakeLayout(std::move(plan), std::move(node_names)));
  return Prepare(std::move(layout), now);
}

Status Controller::DrainWorker(std::string_view name, Time now) {
  Worker* worker = ByName(name);
  if (worker == nullptr) {
    return NotFound(fmt::format("no worker is called {}; `millrace status` lists them", name));
  }
  if (worker->draining) return OkStatus();
  const int left = UsableWorkers() - (worker->unusable.empty() ? 1 : 0);
  const int needed = layout_.automatic && options_.elastic ? options_.tensor_parallel : 0;
  if (left < std::max(1, needed)) {
    return FailedPrecondition(
        fmt::format("{} is the last worker that could serve; start another one first", name));
  }
  size_t slots = 0;
  for (const LayoutStage& stage : layout_.stages) slots += stage.ranks.size();
  const bool fixed = !layout_.automatic || !options_.elastic;
  if (fixed && HasSlot(layout_, worker->id) && left < static_cast<int>(slots)) {
    return FailedPrecondition(fmt::format(
        "the plan needs {} workers and {} would be left; start another one first", slots, left));
  }
  worker->draining = true;
  MR_LOG(info, "draining worker {}", name);
  if (fixed && HasSlot(layout_, worker->id)) {  // the same plan over other workers
    MR_ASSIGN_OR_RETURN(Layout same, MakeLayout(layout_.plan, layout_.node_names));
    return Prepare(std::move(same), now);
  }
  FollowWorkers(now);
  Staff(now);
  return OkStatus();
}

Status Controller::Migrate(RequestId id, std::string_view name, Time now) {
  const Worker* worker = ByName(name);
  if (worker == nullptr) {
    return NotFound(fmt::format("no worker is called {}; `millrace status` lists them", name));
  }
  const auto found = requests_.find(id);
  if (found == requests_.end()) return NotFound("the request is unknown or has ended");
  if (!found->second.lane) return FailedPrecondition("the request is waiting, there is no KV yet");
  if (moves_.contains(id)) return FailedPrecondition("the request is on the move already");
  Lane& from = lanes_.at(*found->second.lane);
  if (from.Uses(worker->id)) {
    return FailedPrecondition(fmt::format("the request runs on {} already", name));
  }
  for (auto& [lane_id, lane] : lanes_) {
    if (lane.open && !lane.retiring && lane.role != StageRole::kPrefill && lane.Uses(worker->id)) {
      return StartMove(id, from, lane, now);
    }
  }
  for (const Way& way : layout_.ways) {
    const bool through = std::ranges::any_of(way.route, [&](const Hop& hop) {
      const LayoutStage& stage = layout_.stages[static_cast<size_t>(hop.stage)];
      return std::ranges::find(stage.ranks, worker->id, &Slot::worker) != stage.ranks.end();
    });
    if (through && way.role != StageRole::kPrefill) LaneFor(way.route, way.role, now);
  }
  return FailedPrecondition(
      fmt::format("no way through {} is open; try again in a moment if the plan has one", name));
}

void Controller::Tick(Time now) {
  WatchHeartbeats(now);
  FollowWorkers(now);
  Staff(now);
  MaybeSwitch(now);
  OpenWays(now);
  ExpireWaiting(now);
  ExpireRemains(now);
  try_waiting_ = true;
  for (const auto& [id, lane] : lanes_) {
    if (lane.open) dirty_.insert(id);  // leases and overdue retries
  }
  RetireLanes(now);
}

void Controller::Advance(Time now) {
  if (std::exchange(try_waiting_, false)) Dispatch(now);
  ContinueFreezes(now);
  const auto pump = [&](const std::set<LaneId>& ids) {
    for (LaneId id : ids) {
      if (Lane* lane = Find(id); lane != nullptr && lane->open) Pump(*lane, now);
    }
  };
  pump(std::exchange(dirty_, {}));
  pump(std::exchange(ask_again_, {}));  // who gave way to one that had nothing to do
  dirty_.merge(std::exchange(ask_again_, {}));
}

namespace {

// An empty vector is handed back in exchange, with its memory.
template <typename T>
void MoveOnto(std::vector<T>& from, std::vector<T>& to) {
  if (to.empty()) {
    to.swap(from);
    return;
  }
  std::ranges::move(from, std::back_inserter(to));
  from.clear();
}

}  // namespace

void Controller::TakeActions(std::vector<ControllerAction>& actions) {
  MoveOnto(actions_, actions);
}

void Controller::TakeOutputs(std::vector<RequestOutput>& outputs) { MoveOnto(outputs_, outputs); }

}  // namespace millrace::cluster
