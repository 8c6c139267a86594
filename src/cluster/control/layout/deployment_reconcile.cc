// Reconcile: what is wanted is compared with what the workers have, and the difference is ordered.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/slot_assignment.h"

namespace millrace::cluster {

Deployment::Changes Deployment::Reconcile(const InUse& in_use, Time now) {
  if (give_up_) GiveUpNext();
  DrainLeaving();
  FollowWorkers(now);
  FollowClasses(now);
  ForgetClasses(now);
  FreeClosedStages(in_use);
  RestoreNamedWorkers();
  AssignWorkers();
  MeasureLoads(now);
  CloseUnlessReplaced();
  SwitchIfUp();
  UnloadUnused(in_use);
  ReleaseIdleWorkers(in_use);
  due_ = false;
  return std::exchange(changes_, {});
}

// The slots and weights of the layout in force have not changed.
void Deployment::DropNext(std::string reason) {
  given_up_ = GivenUpPlan{next_->plan.epoch, std::move(reason)};
  ++given_up_count_;
  next_.reset();
  give_up_.reset();
  mismatch_.reset();
}

void Deployment::GiveUpNext() {
  if (next_->automatic) follows_ = false;
  follows_classes_ = false;
  DropNext(*give_up_);
  MR_LOG(error, "gave up plan {}; plan {} stays in force: {}", given_up_->epoch, layout_.plan.epoch,
         given_up_->reason);
  // This change would have replaced draining workers. Their stages close if the others can serve
  // alone. Otherwise these workers stay, unless they have announced that they leave.
  for (WorkerId id : DrainingInService()) {
    if (CloseStagesOf(id)) continue;
    Membership::Worker& worker = members_.at(id);
    worker.draining = worker.drain_ordered = false;
    if (worker.leaving() && !worker.notice->deadline) {
      outbox_.Send(id, worker.LeaveFor(given_up_->reason));
    }
  }
}

// Workers that must leave and are still needed: the others may be enough by now.
void Deployment::DrainLeaving() {
  for (const auto& [id, worker] : members_.all()) {
    if (worker.leaving() && !worker.draining) (void)Drain(id);
  }
}

// A worker that is only started again would return soon, but where layers are loaded quickly,
// loading them elsewhere is sooner.
Duration Deployment::ReplaceAfter() const {
  if (!has_served_ || CanServe(layout_)) return options_.replace_limit;
  const Duration least = std::min(options_.replace_least, options_.replace_limit);
  return std::clamp(longest_load_, least, options_.replace_limit);
}

void Deployment::MeasureLoads(Time now) {
  std::map<ShardId, Time> loading;
  for (const Layout* layout : Layouts()) {
    for (const LayoutStage& stage : layout->stages) {
      for (const Slot& slot : stage.ranks) {
        const auto began = loading_.find(slot.shard);
        if (slot.loaded && began != loading_.end()) {
          longest_load_ = std::max(longest_load_, now - began->second);
        } else if (slot.asked && !slot.loaded) {
          loading.emplace(slot.shard, began == loading_.end() ? now : began->second);
        }
      }
    }
  }
  loading_ = std::move(loading);
  has_served_ = has_served_ || CanServe(layout_);
}

// Changes an automatic layout when the number of usable workers has changed and stayed the same for
// `ReplaceAfter()`. A plan that an operator has applied is not replaced.
void Deployment::FollowWorkers(Time now) {
  if (!IsAutomatic() || !follows_) return;
  const Layout& target = *Layouts().back();
  const int usable = UsableTogether(options_.shape, members_.usable_by_class());
  const LayoutShape wanted = Fit(options_.shape, usable, options_.num_layers);
  Plan plan = PlanFor(wanted, options_.model, options_.num_layers);
  const bool draining = std::ranges::any_of(
      target.stages, [&](const LayoutStage& stage) { return HasDraining(stage); });
  // Pipelines that are incomplete wait in the layout for workers that come back: what is left needs
  // no other layout.
  const bool fits = SameStages(target.plan, plan) || CompleteShapeOf(target) == wanted;
  if (usable < wanted.workers() || (fits && !draining)) {
    mismatch_.reset();
    return;
  }
  if (!mismatch_ || mismatch_->usable != usable) mismatch_ = Mismatch{now, usable};
  if (!draining && now - mismatch_->since < ReplaceAfter()) return;
  auto layout = MakeLayout(std::move(plan), {});
  if (!layout.ok()) {
    MR_LOG(error, "cannot change the layout: {}", layout.status().message());
    return;
  }
  layout->automatic = true;
  MR_LOG(info, "changing the layout to {}", Describe(wanted));
  const bool relieves = draining || (next_ && next_relieves_);
  Begin(std::move(*layout));
  next_relieves_ = relieves;
}

// Applies the plan again when a pipeline lacks workers of its class and workers of another class
// could take its place, and that has not changed for `replace_limit`.
void Deployment::FollowClasses(Time now) {
  const Layout& target = *Layouts().back();
  const bool stuck = follows_classes_ && members_.usable_by_class().size() > 1 &&
                     !target.FullyAssigned() && CanRefill(target);
  if (!stuck) return stuck_since_.reset();
  if (!stuck_since_) stuck_since_ = now;
  if (now - *stuck_since_ < options_.replace_limit) return;
  stuck_since_.reset();
  auto same = MakeLayout(target.plan, target.node_names);
  if (!same.ok()) return;
  same->automatic = target.automatic;
  MR_LOG(info, "workers of another numeric class take the place of those that are missing");
  Begin(std::move(*same));
}

// A stage without a worker waits for one of its last class for `replace_limit`.
void Deployment::ForgetClasses(Time now) {
  for (Layout* layout : Layouts()) {
    for (LayoutStage& stage : layout->stages) {
      if (stage.bits()) {
        stage.empty_since.reset();
      } else if (!stage.empty_since) {
        stage.empty_since = now;
      } else if (now - *stage.empty_since >= options_.replace_limit) {
        stage.last_bits.reset();
      }
    }
  }
}

// Frees the slots of draining workers that no pipeline uses, for other workers.
void Deployment::FreeClosedStages(const InUse& in_use) {
  for (const auto& [id, worker] : members_.all()) {
    if (!worker.draining || in_use.running.contains(id)) continue;
    const bool closed = std::ranges::any_of(layout_.stages, [&, w = id](const LayoutStage& stage) {
      return stage.closing && HasSlot(stage, w);
    });
    if (closed) Unassign(layout_, id);
  }
}

// A worker that the plan names has joined, and another one has its place. The same plan is applied
// again, so the other serves until this one has loaded its layers.
void Deployment::RestoreNamedWorkers() {
  if (!std::exchange(restores_, false) || next_ || !NamedWorkerIsReplaced(layout_, members_))
    return;
  auto same = MakeLayout(layout_.plan, layout_.node_names);
  if (!same.ok()) return;
  same->automatic = layout_.automatic;
  MR_LOG(info, "a worker that the plan names has joined and gets its place");
  Begin(std::move(*same));
}

// Fills the slots and orders the loads. Empty slots of a layout that is being replaced are not
// filled. While the next layout lacks workers, the one in force may have to serve for a long time,
// so its slots are filled.
void Deployment::AssignWorkers() {
  loads_.SendCancelled();
  const std::vector<Layout*> layouts = Layouts();
  const auto request = [&](Layout& layout) {
    for (LayoutStage& stage : layout.stages) {
      if (stage.FullyAssigned() && !stage.closing) loads_.Request(stage, layouts);
    }
  };
  if (next_) {
    FillSlots(*next_, &layout_, members_);
    request(*next_);
  }
  const bool being_replaced = next_ && next_->FullyAssigned();
  if (!being_replaced) FillSlots(layout_, next_ ? &*next_ : nullptr, members_);
  request(layout_);
}

// Draining workers whose stages still accept requests.
std::set<WorkerId> Deployment::DrainingInService() const {
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

// A draining worker stays in service while its replacement is loading. If the next plan lacks
// workers, nothing replaces it soon, so its stages close if the others can serve alone.
void Deployment::CloseUnlessReplaced() {
  if (!next_ || next_->automatic || next_->FullyAssigned()) return;
  for (WorkerId draining : DrainingInService()) (void)CloseStagesOf(draining);
}

// The next layout comes into force once it is up. If the one in force has no complete pipeline, the
// first complete one of the next layout serves at once, and the others follow as they load.
void Deployment::SwitchIfUp() {
  if (!next_) return;
  const bool replaces_nothing = !CanServe(layout_) && CanServe(*next_);
  if (!next_->Up() && !replaces_nothing) return;
  layout_ = std::move(*next_);
  next_.reset();
  ++applied_;
  changes_.switched = true;
  MR_LOG(info, "plan {} is in force", layout_.plan.epoch);
}

// Unloads shards that no layout and no pipeline needs.
void Deployment::UnloadUnused(const InUse& in_use) {
  std::set<ShardId> needed = in_use.shards;
  for (const Layout* layout : Layouts()) {
    for (const LayoutStage& stage : layout->stages) {
      for (const Slot& slot : stage.ranks) needed.insert(slot.shard);
    }
  }
  loads_.UnloadAllBut(needed);
}

void Deployment::ReleaseIdleWorkers(const InUse& in_use) {
  for (const auto& [id, worker] : members_.all()) {
    const bool used = in_use.running.contains(id) || in_use.keeping.contains(id) ||
                      std::ranges::any_of(Layouts(), [&, w = id](const Layout* layout) {
                        return HasSlot(*layout, w);
                      });
    if (worker.draining && !used && released_.insert(id).second) {
      outbox_.Send(id, members_.at(id).LeaveFor("drained"));
    }
  }
}

}  // namespace millrace::cluster
