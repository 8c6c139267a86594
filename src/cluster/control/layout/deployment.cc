// Events and operators' calls. deployment_reconcile.cc acts on them.
#include "cluster/control/layout/deployment.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/control/layout/slot_assignment.h"

namespace millrace::cluster {

Deployment::Deployment(DeploymentOptions options, ShardLoadOptions loads, Membership& members,
                       IdSource& ids, Outbox& outbox)
    : options_(std::move(options)),
      members_(members),
      outbox_(outbox),
      loads_(std::move(loads), members, ids, outbox) {}

std::vector<Layout*> Deployment::Layouts() {
  std::vector<Layout*> layouts = {&layout_};
  if (next_) layouts.push_back(&*next_);
  return layouts;
}

// Null: no slot of the layout waits for this shard or has it.
LayoutStage* Deployment::FindStage(Layout& layout, ShardId of_rank) {
  if (of_rank == ShardId()) return nullptr;  // slots that wait for nothing
  const auto stage = std::ranges::find_if(layout.stages, [&](const LayoutStage& each) {
    return std::ranges::find(each.ranks, of_rank, &Slot::shard) != each.ranks.end();
  });
  return stage == layout.stages.end() ? nullptr : &*stage;
}

void Deployment::Mark() { due_ = changes_.stages = true; }

void Deployment::Begin(Layout layout) {
  given_up_.reset();
  give_up_.reset();
  mismatch_.reset();
  next_relieves_ = false;
  layout.plan.epoch = ++epoch_;
  const bool has_shards = std::ranges::any_of(layout_.stages, [](const LayoutStage& stage) {
    return std::ranges::any_of(stage.ranks,
                               [](const Slot& slot) { return slot.shard != ShardId(); });
  });
  if (has_shards) {
    next_ = std::move(layout);
  } else {
    layout_ = std::move(layout);
    next_.reset();
    ++applied_;
    changes_.switched = true;
  }
  Mark();
}

void Deployment::Expect(BitClass bits) {
  for (LayoutStage& stage : layout_.stages) {
    if (!stage.bits() && !stage.last_bits) stage.last_bits = bits;
  }
}

void Deployment::WorkerJoined() {
  follows_ = restores_ = follows_classes_ = true;
  Check();
}

void Deployment::WorkerLost(WorkerId worker) {
  follows_ = follows_classes_ = true;
  released_.erase(worker);
  loads_.WorkerLost(worker);
  for (Layout* layout : Layouts()) Unassign(*layout, worker);
  Mark();
}

bool Deployment::HasDraining(const LayoutStage& stage) const {
  return std::ranges::any_of(stage.ranks, [&](const Slot& slot) {
    return slot.worker && members_.at(*slot.worker).draining;
  });
}

// Removes a worker from its slots, or from those whose layers it has not loaded. The other ranks of
// its stage shared a collective with it and must load again to form a new one.
void Deployment::Unassign(Layout& layout, WorkerId worker, Slots which) {
  for (LayoutStage& stage : layout.stages) {
    const auto of_worker = std::ranges::find(stage.ranks, worker, &Slot::worker);
    if (of_worker == stage.ranks.end()) continue;
    if (which == Slots::kNotLoaded && of_worker->loaded) continue;
    const bool alone = stage.ranks.size() == 1;
    stage.meetings_failed = 0;
    for (Slot& slot : stage.ranks) {
      if (slot.worker == worker) {
        slot = {};
      } else if (!alone) {
        // The rank may be waiting for the lost one. If it has begun to read weights, it continues.
        const bool meets = slot.asked && !slot.loaded && slot.bytes_done == 0;
        if (meets) loads_.Cancel(std::exchange(slot.shard, ShardId()));
        slot.asked = slot.loaded = false;
      }
    }
    // Several ranks may drain at the same time.
    stage.closing = stage.closing && HasDraining(stage);
  }
  Mark();
}

void Deployment::ShardProgress(const millrace::ShardProgress& message) {
  for (Layout* layout : Layouts()) {
    LayoutStage* stage = FindStage(*layout, message.shard);
    if (stage == nullptr) continue;
    Slot& slot = *std::ranges::find(stage->ranks, message.shard, &Slot::shard);
    slot.bytes_done = message.bytes_done;
    slot.bytes_total = message.bytes_total;
  }
}

Deployment::LoadResult Deployment::ShardLoaded(WorkerId from,
                                               const millrace::ShardLoaded& message) {
  bool found = false;
  for (Layout* layout : Layouts()) {
    LayoutStage* stage = FindStage(*layout, message.shard);
    if (stage == nullptr) continue;
    Slot& slot = *std::ranges::find(stage->ranks, message.shard, &Slot::shard);
    if (!slot.asked) continue;  // its group is formed again
    if (!message.status.ok()) return LoadFailed(members_.at(from), message);
    found = true;
    slot.loaded = true;
    slot.facts = message;
    ShareKv(*layout, from);
  }
  if (!found) return LoadResult::kStale;
  if (layout_.Up()) MR_LOG(info, "every layer of {} is loaded", Printable(options_.model));
  Mark();
  return LoadResult::kTaken;
}

// What a worker has for KV is for all its slots. Later loads leave less.
void Deployment::ShareKv(Layout& layout, WorkerId worker) {
  std::optional<int64_t> least;
  for (const bool write : {false, true}) {
    for (LayoutStage& stage : layout.stages) {
      for (Slot& slot : stage.ranks) {
        if (slot.worker != worker || !slot.loaded) continue;
        if (write) slot.facts.kv_bytes = *least;
        least = std::min(least.value_or(slot.facts.kv_bytes), slot.facts.kv_bytes);
      }
    }
  }
}

// A failed load for the layout in force is tried on another worker. A failed load for the next
// layout gives that layout up, so that the layout in force is not disturbed.
Deployment::LoadResult Deployment::LoadFailed(Membership::Worker& worker,
                                              const millrace::ShardLoaded& message) {
  if (RetryConnecting(message)) return LoadResult::kTaken;
  const std::string name = Printable(worker.join.name), why = Printable(message.status.message());
  MR_LOG(error, "worker {} cannot load its layers: {}", name, why);
  if (FindStage(layout_, message.shard) == nullptr) {
    const LayerRange layers = FindStage(*next_, message.shard)->plan.layers;
    GiveUp(fmt::format("worker {} cannot load layers {}-{}: {}", name, layers.begin, layers.end - 1,
                       why));
    return LoadResult::kTaken;
  }
  if (message.status.code() == StatusCode::kUnavailable) return LoadResult::kWorkerLost;
  worker.unusable = message.status.message();
  loads_.Failed(message.shard);
  // What it has loaded serves on.
  for (Layout* layout : Layouts()) Unassign(*layout, worker.id, Slots::kNotLoaded);
  return LoadResult::kTaken;
}

// Handles a stage whose ranks did not connect to each other, because one of them was lost or late.
// True: they try again, or the layout that needs them is given up.
bool Deployment::RetryConnecting(const millrace::ShardLoaded& message) {
  if (message.status.code() != StatusCode::kUnavailable) return false;
  LayoutStage* to_come = next_ ? FindStage(*next_, message.shard) : nullptr;
  const LayoutStage* stage = to_come != nullptr ? to_come : FindStage(layout_, message.shard);
  if (stage->ranks.size() == 1) return false;
  const std::string what = fmt::format("the ranks of layers {}-{} failed to connect",
                                       stage->plan.layers.begin, stage->plan.layers.end - 1);
  const std::string why = Printable(message.status.message());
  MR_LOG(warn, "{}: {}", what, why);
  if (to_come != nullptr && ++to_come->meetings_failed >= DeploymentOptions::kMeetingsMax) {
    GiveUp(fmt::format("{} {} times: {}", what, to_come->meetings_failed, why));
  } else {
    ResetGroup(message.shard);
  }
  return true;
}

void Deployment::ResetGroup(ShardId of_rank) {
  for (Layout* layout : Layouts()) {
    LayoutStage* stage = FindStage(*layout, of_rank);
    if (stage == nullptr || stage->ranks.size() == 1) continue;
    for (Slot& slot : stage->ranks) slot.asked = slot.loaded = false;
    Mark();
  }
}

void Deployment::GiveUp(std::string reason) {
  if (!give_up_) give_up_ = std::move(reason);
  Mark();
}

bool Deployment::IsAutomatic() const {
  return layout_.automatic && options_.elastic && (!next_ || next_->automatic);
}

Status Deployment::Drain(WorkerId id) {
  Membership::Worker& worker = members_.at(id);
  if (worker.draining) return OkStatus();
  const int left = members_.usable() - (worker.Usable() ? 1 : 0);
  if (left < std::max(1, IsAutomatic() ? options_.shape.tensor_parallel : 0)) {
    return FailedPrecondition(fmt::format(
        "{} is the last worker that could serve; start another one first", worker.join.name));
  }
  worker.draining = true;
  if (!IsAutomatic()) {
    if (Status relieved = Relieve(worker); !relieved.ok()) {
      worker.draining = false;
      return relieved;
    }
  }
  follows_ = true;
  MR_LOG(info, "draining worker {}", Printable(worker.join.name));
  Mark();
  return OkStatus();
}

// Whether the usable workers could take all slots of the layout.
bool Deployment::CanRefill(const Layout& layout) const {
  Layout again = layout;
  for (LayoutStage& stage : again.stages) {
    stage.closing = false;
    stage.last_bits.reset();
    for (Slot& slot : stage.ranks) slot = {};
  }
  FillSlots(again, &layout_, members_);
  return again.FullyAssigned();
}

// Transfers the duties of a draining worker to others, in a layout that does not follow the number
// of workers.
Status Deployment::Relieve(const Membership::Worker& worker) {
  size_t slots = 0;
  for (const LayoutStage& stage : Layouts().back()->stages) slots += stage.ranks.size();
  const bool enough = members_.usable() >= static_cast<int>(slots) && CanRefill(*Layouts().back());
  const bool serves = HasSlot(layout_, worker.id);
  if (serves && !enough && !CloseStagesOf(worker.id)) {
    return FailedPrecondition(fmt::format(
        "the {} needs {} workers but {} would be left, and without {} no pipeline of {} "
        "is complete; start another worker first",
        next_ ? "next plan" : "plan", slots, members_.usable(), worker.join.name,
        next_ ? "the plan in force" : "it"));
  }
  if (next_) {
    // The worker stays until that plan is in force, unless the others can serve alone.
    Unassign(*next_, worker.id);
  } else if (serves && enough) {  // apply the same plan to the other workers
    MR_ASSIGN_OR_RETURN(Layout same, MakeLayout(layout_.plan, layout_.node_names));
    same.automatic = layout_.automatic;
    Begin(std::move(same));
    next_relieves_ = true;
  }
  return OkStatus();
}

void Deployment::Stay(WorkerId id) {
  Membership::Worker& worker = members_.at(id);
  if (!worker.draining || released_.contains(id)) return;
  worker.draining = false;
  follows_ = follows_classes_ = restores_ = true;
  for (LayoutStage& stage : layout_.stages) stage.closing = stage.closing && HasDraining(stage);
  const std::string name = Printable(worker.join.name);
  MR_LOG(info, "worker {} stays", name);
  const bool relieves_others = std::ranges::any_of(
      layout_.stages, [&](const LayoutStage& stage) { return HasDraining(stage); });
  if (next_ && next_relieves_ && !relieves_others) DropNext(fmt::format("{} stays", name));
  Mark();
}

// Closes the worker's stages: new requests go to other pipelines, and running ones move there.
// False: no other pipeline could do what these stages do, so nothing was changed.
bool Deployment::CloseStagesOf(WorkerId worker) {
  std::vector<LayoutStage*> closed;
  for (LayoutStage& stage : layout_.stages) {
    if (HasSlot(stage, worker) && !std::exchange(stage.closing, true)) closed.push_back(&stage);
  }
  if (!CanServe(layout_)) {
    for (LayoutStage* stage : closed) stage->closing = false;
    return false;
  }
  Mark();
  return true;
}

void Deployment::CheckIntegrity() const {
  for (const Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (const LayoutStage& stage : layout->stages) {
      for (const Slot& slot : stage.ranks) {
        MR_CHECK(!slot.worker || members_.Find(*slot.worker) != nullptr)
            << "a lost worker has layers " << stage.plan.layers.begin << " and more";
      }
    }
  }
  loads_.CheckIntegrity();
}

}  // namespace millrace::cluster
