// Orderly ends: draining workers, pipelines of earlier plans, and changes of plan that cannot be
// loaded. Requests move to other pipelines with their KV.
//
// If there is a spare worker, it replaces the draining one: the same plan is applied again without
// the draining worker. Otherwise its stages close, if the other pipelines can serve alone, and its
// requests move to those.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {

Status ControllerCore::DrainWorker(std::string_view name, Time now) {
  Worker* worker = members_.Find(name);
  if (worker == nullptr) {
    return NotFound(fmt::format("no worker is named {}; `millrace status` lists them", name));
  }
  if (worker->draining) return OkStatus();
  const int left = members_.usable() - (worker->unusable.empty() ? 1 : 0);
  const bool follows = layout_.automatic && options_.elastic && (!next_ || next_->automatic);
  if (left < std::max(1, follows ? options_.tensor_parallel : 0)) {
    return FailedPrecondition(
        fmt::format("{} is the last worker that could serve; start another one first", name));
  }
  worker->draining = true;
  follows_ = true;
  if (!follows) {
    if (Status relieved = Relieve(*worker, now); !relieved.ok()) {
      worker->draining = false;
      return relieved;
    }
  }
  MR_LOG(info, "draining worker {}", Printable(name));
  FollowWorkers(now);
  AssignWorkers(now);
  return OkStatus();
}

// Transfers the duties of a draining worker to others, in a layout that does not follow the number
// of workers.
Status ControllerCore::Relieve(const Worker& worker, Time now) {
  const Layout& target = next_ ? *next_ : layout_;
  size_t slots = 0;
  for (const LayoutStage& stage : target.stages) slots += stage.ranks.size();
  const bool enough = members_.usable() >= static_cast<int>(slots);
  const bool serves = HasSlot(layout_, worker.id);
  // While a plan is being loaded, the worker stays until that plan is in force, unless the others
  // can serve alone.
  if (next_) {
    if (serves && !enough && !CloseStagesOf(worker.id, now)) {
      return FailedPrecondition(
          fmt::format("the next plan needs {} workers but {} would be left, and without {} no "
                      "pipeline of the plan in force is complete; start another worker first",
                      slots, members_.usable(), worker.join.name));
    }
    UnassignSlots(*next_, worker.id);
    return OkStatus();
  }
  if (!serves) return OkStatus();
  if (enough) {  // apply the same plan to the other workers
    MR_ASSIGN_OR_RETURN(Layout same, MakeLayout(layout_.plan, layout_.node_names));
    same.automatic = layout_.automatic;
    return Prepare(std::move(same), now);
  }
  if (CloseStagesOf(worker.id, now)) return OkStatus();
  return FailedPrecondition(fmt::format(
      "the plan needs {} workers but {} would be left, and without {} no pipeline of it "
      "is complete; start another worker first",
      slots, members_.usable(), worker.join.name));
}

// Closes the worker's stages: new requests go to other pipelines, and running ones move there.
// False: no other pipeline could do what these stages do, so nothing was changed.
bool ControllerCore::CloseStagesOf(WorkerId worker, Time now) {
  std::vector<LayoutStage*> closed;
  for (LayoutStage& stage : layout_.stages) {
    const bool here = std::ranges::find(stage.ranks, worker, &Slot::worker) != stage.ranks.end();
    if (here && !std::exchange(stage.closing, true)) closed.push_back(&stage);
  }
  const bool others_serve = std::ranges::all_of(closed, [&](const LayoutStage* stage) {
    const StageRole role = stage->plan.role;
    return (role == StageRole::kDecode || HasPipeline(layout_, Phase::kPrefill)) &&
           (role == StageRole::kPrefill || HasPipeline(layout_, Phase::kDecode));
  });
  if (!others_serve) {
    for (LayoutStage* stage : closed) stage->closing = false;
    return false;
  }
  for (auto& [id, pipeline] : pipelines_) {
    if (pipeline.Uses(worker)) pipeline.retiring = true;
  }
  UpdateRouter(now);
  RerouteWaiting(now);
  RetirePipelines(now);
  return true;
}

// Draining workers whose stages still accept requests.
std::set<WorkerId> ControllerCore::DrainingInService() const {
  std::set<WorkerId> draining;
  for (const LayoutStage& stage : layout_.stages) {
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && !stage.closing && members_.at(*slot.worker).draining) {
        draining.insert(*slot.worker);
      }
    }
  }
  return draining;
}

// Frees the slots of draining workers that no pipeline uses, for workers that join.
void ControllerCore::EmptyClosedStages() {
  for (const auto& [id, worker] : members_.all()) {
    const bool runs = std::ranges::any_of(
        pipelines_, [&, w = id](const auto& entry) { return entry.second.Uses(w); });
    if (!worker.draining || runs) continue;
    const bool closed = std::ranges::any_of(layout_.stages, [&, w = id](const LayoutStage& stage) {
      return stage.closing && std::ranges::find(stage.ranks, w, &Slot::worker) != stage.ranks.end();
    });
    if (closed) UnassignSlots(layout_, id);
  }
}

// Gives the next plan up. The slots, pipelines and weights of the plan in force have not changed.
void ControllerCore::GiveUpNext(const std::string& reason, Time now) {
  MR_LOG(error, "gave up plan {}; plan {} stays in force: {}", next_->plan.epoch,
         layout_.plan.epoch, reason);
  ++counters_.plans_given_up;
  given_up_ = GivenUpPlan{next_->plan.epoch, reason};
  if (next_->automatic) follows_ = false;
  next_.reset();
  mismatch_since_.reset();
  // This change would have replaced draining workers. Their stages close if the others can serve
  // alone. Otherwise these workers stay, unless they have announced that they leave.
  for (WorkerId id : DrainingInService()) {
    if (CloseStagesOf(id, now)) continue;
    Worker& worker = members_.at(id);
    worker.draining = false;
    if (worker.leaving) Send(id, Leave{reason});
  }
  RetirePipelines(now);
  AssignWorkers(now);
}

// Empties and closes retiring pipelines: running requests move, waiting ones leave, and then the
// pipeline closes.
void ControllerCore::RetirePipelines(Time now) {
  // Requests that are moving to one of them stay at their source, and can move again from there.
  std::vector<RequestId> abandoned;
  for (const auto& [request, move] : moves_) {
    const Pipeline* to = Find(move.to);
    if (move.phase != Move::Phase::kTail && to != nullptr && to->retiring) {
      abandoned.push_back(request);
    }
  }
  for (RequestId request : abandoned) AbandonMove(request, now);
  std::vector<PipelineId> empty;
  for (auto& [id, pipeline] : pipelines_) {
    if (!pipeline.retiring) continue;
    if (!pipeline.open) {
      empty.push_back(id);
      continue;
    }
    const std::set<RequestId> requests = pipeline.requests;
    for (RequestId request : requests) {
      if (!moves_.contains(request)) TakeOut(pipeline, request, now);
    }
    const bool source = std::ranges::any_of(
        moves_, [from = id](const auto& entry) { return entry.second.from == from; });
    if (pipeline.requests.empty() && !source && !waiters_.contains(id) &&
        pipeline.scheduler->steps_in_flight() == 0) {
      empty.push_back(id);
    }
  }
  for (PipelineId id : empty) {
    if (pipelines_.at(id).requests.empty()) {
      ClosePipeline(id);
    } else {
      LosePipeline(id, Unavailable("its plan is no longer in force"), PipelineEnd::kNoFault, {},
                   now);
    }
  }
  EmptyClosedStages();
  DropUnusedShards();
  ReleaseIdleWorkers();
}

// Takes a request out of a retiring pipeline: it moves, or waits for another pipeline, or stays
// until it can move.
void ControllerCore::TakeOut(Pipeline& pipeline, RequestId id, Time now) {
  Tracked& tracked = requests_.at(id);
  const auto info = pipeline.scheduler->Inspect(id, now);
  const bool has_kv =
      info && info->state == sched::RequestState::kRunning && info->computed_tokens > 0;
  const Phase phase = pipeline.role == StageRole::kPrefill ? Phase::kPrefill : Phase::kDecode;
  if (has_kv && !HasPipeline(layout_, phase))
    return;  // no pipeline could take it, so it continues here
  if (has_kv && tracked.n() == 1 && pipeline.role != StageRole::kPrefill) {
    if (moves_.size() >= ControllerOptions::kMovesMax) return;
    tracked.route.reset();
    Pipeline* to = router_ ? nullptr : ChoosePipeline(id, tracked, now);
    if (to != nullptr && !to->open) return;
    if (to != nullptr && StartMove(id, pipeline, *to, now).ok()) return;
  }
  // A request that is routed by the router, has several sequences, or is in the middle of its
  // prompt can fetch its KV later. Otherwise the KV is computed again.
  const bool may_fetch =
      has_kv && (router_ || tracked.n() > 1 || pipeline.role == StageRole::kPrefill);
  const auto hold = may_fetch ? std::optional(options_.hold_limit) : std::nullopt;
  auto detached = pipeline.scheduler->Detach(id, now, hold);
  if (!detached) return;  // the request is ending
  if (hold) LeaveBehind(id, pipeline.id, *detached, pipeline.scheduler->HeldBlocks(id));
  pipeline.requests.erase(id);
  tracked.pipeline.reset();
  tracked.route.reset();
  if (router_) router_->Release(id, tracked.delivered + tracked.prompt_tokens(), now);
  Wait(id, tracked, std::move(detached->request), now);
}

void ControllerCore::ReleaseIdleWorkers() {
  std::vector<WorkerId> idle;
  for (const auto& [id, worker] : members_.all()) {
    const bool used =
        HasSlot(layout_, id) || (next_ && HasSlot(*next_, id)) || HasSurvivingStages(id) ||
        std::ranges::any_of(pipelines_,
                            [&, w = id](const auto& entry) { return entry.second.Uses(w); });
    if (worker.draining && !used) idle.push_back(id);
  }
  for (WorkerId id : idle) Send(id, Leave{"drained"});
}

}  // namespace millrace::cluster
