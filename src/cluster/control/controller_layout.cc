// Assignment of layers to workers: filling a layout's slots, loading weights, and switching from
// one layout to the next.
//
// A change of plan is one numbered transaction. First the missing weights of the next layout are
// loaded beside the old ones, then requests move over, then unused weights are dropped. The old
// layout is unchanged until the next one is completely loaded.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
bool ControllerCore::HasSlot(const Layout& layout, WorkerId worker) {
  return std::ranges::any_of(layout.stages, [&](const LayoutStage& stage) {
    return std::ranges::find(stage.ranks, worker, &Slot::worker) != stage.ranks.end();
  });
}

Slot* ControllerCore::FindSlot(ShardId shard) {
  for (Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (LayoutStage& stage : layout->stages) {
      for (Slot& slot : stage.ranks) {
        if (slot.worker && slot.shard == shard) return &slot;
      }
    }
  }
  return nullptr;
}

LayoutStage* ControllerCore::FindStage(Layout& layout, ShardId of_rank) {
  for (LayoutStage& stage : layout.stages) {
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && slot.shard == of_rank) return &stage;
    }
  }
  return nullptr;
}

// Makes the ranks of the shard's stage form their group again at the next AssignWorkers. False: no
// stage with several ranks has this shard.
bool ControllerCore::ResetGroup(ShardId of_rank) {
  bool found = false;
  for (Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (LayoutStage& stage : layout->stages) {
      if (stage.ranks.size() == 1) continue;
      if (std::ranges::find(stage.ranks, of_rank, &Slot::shard) == stage.ranks.end()) continue;
      for (Slot& slot : stage.ranks) slot.asked = slot.loaded = false;
      found = true;
    }
  }
  return found;
}

// In order of preference: the worker that the plan names; one that holds these layers, or some of
// them, in the other layout; one that holds them from an earlier session; the one that joined
// first. nullopt: no worker is free.
std::optional<WorkerId> ControllerCore::ChooseWorker(const Layout& layout, const Layout* other,
                                                     const LayoutStage& stage, int rank) const {
  std::optional<WorkerId> best;
  int best_score = -1;
  const TensorRank wanted{rank, static_cast<int>(stage.ranks.size())};
  for (const auto& [id, worker] : members_.all()) {
    if (!worker.Usable() || HasSlot(layout, id)) continue;
    int score = 0;
    for (const HeldShard& held : worker.join.held) {
      if (held.layers == stage.plan.layers && held.rank == wanted) score = 2;
    }
    if (other != nullptr) {
      for (const LayoutStage& s : other->stages) {
        if (static_cast<int>(s.ranks.size()) != wanted.size) continue;
        if (s.ranks[static_cast<size_t>(rank)].worker != id) continue;
        // The more of the wanted layers it has, the better.
        const int shared = std::min(s.plan.layers.end, stage.plan.layers.end) -
                           std::max(s.plan.layers.begin, stage.plan.layers.begin);
        if (s.plan.layers == stage.plan.layers) score = std::max(score, 1 << 20);
        score = std::max(score, 2 + shared);
      }
    }
    const size_t at = static_cast<size_t>(rank) % std::max<size_t>(1, stage.plan.nodes.size());
    if (at < stage.plan.nodes.size() && !layout.node_names.empty()) {
      const auto node = static_cast<size_t>(stage.plan.nodes[at]);
      if (node < layout.node_names.size() && layout.node_names[node] == worker.join.name) {
        score = 1 << 24;
      }
    }
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

void ControllerCore::AssignWorkers(Time) {
  if (next_) AssignLayout(*next_, &layout_);
  AssignLayout(layout_, next_ ? &*next_ : nullptr);
}

void ControllerCore::AssignLayout(Layout& layout, const Layout* other) {
  // Empty slots of a layout that is being replaced are not filled. While the next layout lacks
  // workers, this one may have to serve for a long time, so its slots are filled.
  const bool being_replaced = &layout == &layout_ && next_ &&
                              std::ranges::all_of(next_->stages, &LayoutStage::FullyAssigned);
  const auto held = [&](const LayoutStage& stage, size_t rank) {
    const TensorRank place{static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
    return std::ranges::any_of(members_.all(), [&](const auto& entry) {
      const auto& [id, worker] = entry;
      return worker.Usable() && !HasSlot(layout, id) &&
             std::ranges::any_of(worker.join.held, [&](const HeldShard& shard) {
               return shard.layers == stage.plan.layers && shard.rank == place;
             });
    });
  };
  // First the slots whose layers a worker holds from an earlier session: with any other slot that
  // worker would have to load again.
  for (LayoutStage& stage : layout.stages) {
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      Slot& slot = stage.ranks[rank];
      if (slot.worker || being_replaced || stage.closing || !held(stage, rank)) continue;
      slot.worker = ChooseWorker(layout, other, stage, static_cast<int>(rank));
    }
  }
  for (LayoutStage& stage : layout.stages) {
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      Slot& slot = stage.ranks[rank];
      if (slot.worker || being_replaced || stage.closing) continue;
      slot.worker = ChooseWorker(layout, other, stage, static_cast<int>(rank));
    }
    if (stage.FullyAssigned() && !stage.closing) RequestLoad(stage);
  }
}

// Peers that a worker can copy weights from instead of reading them from disk: first those that
// have loaded some of these layers, then those that have any weights of the model.
std::vector<WorkerAddress> ControllerCore::WeightSources(WorkerId of, LayerRange layers) const {
  std::set<WorkerId> holders;
  for (const LayoutStage& stage : layout_.stages) {
    if (stage.plan.layers.begin >= layers.end || stage.plan.layers.end <= layers.begin) continue;
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && slot.loaded) holders.insert(*slot.worker);
    }
  }
  std::vector<WorkerAddress> near, far;
  for (const auto& [id, worker] : members_.all()) {
    if (id == of) continue;
    const bool holds = holders.contains(id);
    if (!holds && worker.join.identity.model_fingerprint.empty()) continue;
    (holds ? near : far).push_back(worker.address);
  }
  near.insert(near.end(), far.begin(), far.end());
  if (near.size() > ControllerOptions::kWeightSourcesMax) {
    near.resize(ControllerOptions::kWeightSourcesMax);
  }
  return near;
}

void ControllerCore::RequestLoad(LayoutStage& stage) {
  const bool any_new = std::ranges::any_of(stage.ranks, [](const Slot& s) { return !s.asked; });
  if (!any_new) return;
  const uint64_t group = HashCounter(options_.secret, NextId());
  std::vector<WorkerAddress> ranks;
  for (const Slot& slot : stage.ranks) ranks.push_back(members_.at(*slot.worker).address);
  for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
    Slot& slot = stage.ranks[rank];
    const TensorRank place{static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
    // Another layout may have the same layers on the same worker. A stage with one rank then shares
    // the shard.
    if (place.size == 1) {
      for (Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
        if (layout == nullptr) continue;
        for (const LayoutStage& s : layout->stages) {
          if (&s == &stage || s.ranks.size() != 1 || s.plan.layers != stage.plan.layers) continue;
          const Slot& twin = s.ranks.front();
          if (twin.worker == slot.worker && twin.asked) slot = twin;
        }
      }
      if (slot.asked) continue;
    }
    const ShardId old = std::exchange(slot.shard, ShardId(NextId()));
    slot.asked = true;
    slot.loaded = false;
    shards_.emplace(slot.shard, *slot.worker);
    LoadShard load{.shard = slot.shard,
                   .group = group,
                   .layers = stage.plan.layers,
                   .rank = place,
                   .ranks = ranks,
                   .model_fingerprint = options_.identity.model_fingerprint,
                   .max_batched_tokens = options_.scheduler.max_num_batched_tokens,
                   .max_model_len = options_.scheduler.max_model_len};
    load.sources = WeightSources(*slot.worker, stage.plan.layers);
    Send(*slot.worker, std::move(load));
    // After the load, so that the worker can keep the weights and rebuild only the collective.
    if (old != ShardId() && shards_.erase(old) > 0) Send(*slot.worker, UnloadShard{old});
  }
}

void ControllerCore::On(ConnectionId, const ShardProgress& message, Time) {
  if (Slot* slot = FindSlot(message.shard)) {
    slot->bytes_done = message.bytes_done;
    slot->bytes_total = message.bytes_total;
  }
}

void ControllerCore::On(ConnectionId from, const ShardLoaded& message, Time now) {
  if (FindSlot(message.shard) == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  if (!message.status.ok()) return LoadFailed(*members_.Find(from), message, now);
  for (Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (LayoutStage& stage : layout->stages) {
      for (Slot& slot : stage.ranks) {
        if (!slot.worker || slot.shard != message.shard) continue;
        slot.loaded = true;
        slot.facts = message;
      }
    }
  }
  if (layout_.Up()) MR_LOG(info, "every layer of {} is loaded", Printable(options_.model));
  if (!router_ && !layout_.Missing()) MakeRouter(now);
  UpdateRouter(now);
  try_waiting_ = true;
  OpenPipelines(now);
  MaybeSwitch(now);
}

// A failed load for the plan in force is tried on another worker. A failed load for the next plan
// gives that plan up, so that the plan in force is not disturbed.
void ControllerCore::LoadFailed(Worker& worker, const ShardLoaded& message, Time now) {
  if (RetryConnecting(message, now)) return;
  const std::string name = Printable(worker.join.name), why = Printable(message.status.message());
  MR_LOG(error, "worker {} cannot load its layers: {}", name, why);
  if (FindStage(layout_, message.shard) == nullptr) {
    const LayerRange layers = FindStage(*next_, message.shard)->plan.layers;
    return GiveUpNext(fmt::format("worker {} cannot load layers {}-{}: {}", name, layers.begin,
                                  layers.end - 1, why),
                      now);
  }
  // No source has the weights. In its next session the worker gets the sources known by then.
  if (message.status.code() == StatusCode::kUnavailable) {
    return LoseWorker(worker.id, message.status, true, now);
  }
  worker.unusable = message.status.message();
  shards_.erase(message.shard);
  UnassignSlots(layout_, worker.id);
  if (next_) UnassignSlots(*next_, worker.id);
  RerouteWaiting(now);
  AssignWorkers(now);
}

// Handles a stage whose ranks did not connect to each other, because one of them was lost or late.
// True: they try again, or the plan that needs them is given up.
bool ControllerCore::RetryConnecting(const ShardLoaded& message, Time now) {
  if (message.status.code() != StatusCode::kUnavailable) return false;
  LayoutStage* to_come = next_ ? FindStage(*next_, message.shard) : nullptr;
  const LayoutStage* stage = to_come != nullptr ? to_come : FindStage(layout_, message.shard);
  if (stage->ranks.size() == 1) return false;
  MR_LOG(warn, "the ranks of layers {}-{} failed to connect: {}", stage->plan.layers.begin,
         stage->plan.layers.end - 1, Printable(message.status.message()));
  if (to_come != nullptr && ++to_come->meetings_failed >= ControllerOptions::kMeetingsMax) {
    GiveUpNext(fmt::format("the ranks of layers {}-{} failed to connect {} times: {}",
                           to_come->plan.layers.begin, to_come->plan.layers.end - 1,
                           to_come->meetings_failed, Printable(message.status.message())),
               now);
    return true;
  }
  ResetGroup(message.shard);
  UpdateRouter(now);
  RerouteWaiting(now);
  AssignWorkers(now);
  return true;
}

Status ControllerCore::Prepare(Layout layout, Time now) {
  if (layout.pipelines.empty()) {  // a branching plan: check that it can be routed
    MR_RETURN_IF_ERROR(NewRouter(layout.plan).status());
  } else {
    const auto has = [&](StageRole role) {
      return std::ranges::find(layout.pipelines, role, &PlannedPipeline::role) !=
             layout.pipelines.end();
    };
    if (has(StageRole::kPrefill) && !has(StageRole::kDecode) && !has(StageRole::kBoth)) {
      return InvalidArgument("the plan has prefill stages but no stages that decode");
    }
    if (!has(StageRole::kBoth) && !has(StageRole::kPrefill)) {
      return InvalidArgument("the plan has decode stages but no stages for prefill");
    }
  }
  ++counters_.layouts;
  given_up_.reset();
  layout.plan.epoch = ++epoch_;
  if (layout_.stages.empty() || !std::ranges::any_of(layout_.stages, [](const LayoutStage& s) {
        return std::ranges::any_of(s.ranks, &Slot::asked);
      })) {
    layout_ = std::move(layout);  // nothing runs yet
    router_.reset();
    ++counters_.plans_applied;
    AssignWorkers(now);
    return OkStatus();
  }
  next_ = std::move(layout);
  mismatch_since_.reset();
  AssignWorkers(now);
  MaybeSwitch(now);
  return OkStatus();
}

// Changes an automatic layout when the number of usable workers has changed and stayed the same for
// `replace_limit`. A plan that an operator has applied is not replaced.
void ControllerCore::FollowWorkers(Time now) {
  if (!layout_.automatic || !options_.elastic || !follows_ || (next_ && !next_->automatic)) return;
  const Layout& target = next_ ? *next_ : layout_;
  const int usable = members_.usable() / options_.tensor_parallel;
  const int wanted = std::clamp(usable, 1, std::min(options_.stages, options_.num_layers));
  const bool draining = std::ranges::any_of(target.stages, [&](const LayoutStage& stage) {
    return std::ranges::any_of(stage.ranks, [&](const Slot& slot) {
      return slot.worker && members_.at(*slot.worker).draining;
    });
  });
  if (usable < 1 || (std::ssize(target.stages) == wanted && !draining)) {
    mismatch_since_.reset();
    return;
  }
  if (!mismatch_since_ || std::exchange(mismatch_usable_, usable) != usable) mismatch_since_ = now;
  if (!draining && now - *mismatch_since_ < options_.replace_limit) return;
  auto layout = MakeLayout(
      EvenPlan(options_.model, options_.num_layers, wanted, options_.tensor_parallel), {});
  if (!layout.ok()) return;
  layout->automatic = true;
  MR_LOG(info, "changing the layout to {} stage{}", wanted, wanted == 1 ? "" : "s");
  if (const Status ok = Prepare(std::move(*layout), now); !ok.ok()) {
    MR_LOG(error, "cannot change the layout: {}", ok.message());
  }
}

void ControllerCore::MaybeSwitch(Time now) {
  if (!next_ || !next_->Up()) return;
  layout_ = std::move(*next_);
  next_.reset();
  ++counters_.plans_applied;
  MR_LOG(info, "plan {} is in force", layout_.plan.epoch);
  // A pipeline continues unchanged if the new plan has the same route with the same shards.
  for (auto& [id, pipeline] : pipelines_) {
    bool kept = !pipeline.retiring;
    Route route;
    for (const PipelineHop& hop : pipeline.hops) {
      std::optional<int> place;
      for (size_t i = 0; i < layout_.stages.size(); ++i) {
        const LayoutStage& stage = layout_.stages[i];
        const bool same = std::ranges::equal(stage.ranks, hop.shards, {}, &Slot::shard);
        if (same && stage.plan.role == pipeline.role) place = static_cast<int>(i);
      }
      kept = kept && place.has_value();
      if (kept) route.push_back({*place, hop.layers});
    }
    kept = kept && !layout_.pipelines.empty() &&
           std::ranges::any_of(
               layout_.pipelines, [&, role = pipeline.role](const PlannedPipeline& planned) {
                 return planned.role == role &&
                        std::ranges::equal(planned.route, route, [](const Hop& a, const Hop& b) {
                          return a.stage == b.stage && a.layers == b.layers;
                        });
               });
    if (kept) {
      pipeline.route = std::move(route);
    } else {
      pipeline.retiring = true;
    }
  }
  MakeRouter(now);
  OpenPipelines(now);
  try_waiting_ = true;
  RetirePipelines(now);
}

// Unloads shards that no layout and no pipeline needs.
void ControllerCore::DropUnusedShards() {
  std::set<ShardId> needed;
  for (const Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (const LayoutStage& stage : layout->stages) {
      for (const Slot& slot : stage.ranks) {
        if (slot.worker) needed.insert(slot.shard);
      }
    }
  }
  for (const auto& [id, pipeline] : pipelines_) {
    for (const PipelineHop& hop : pipeline.hops)
      needed.insert(hop.shards.begin(), hop.shards.end());
  }
  for (const auto& [id, surviving_stages] : surviving_stages_) {
    for (const PipelineHop& hop : surviving_stages.hops)
      needed.insert(hop.shards.begin(), hop.shards.end());
  }
  for (auto it = shards_.begin(); it != shards_.end();) {
    if (needed.contains(it->first)) {
      ++it;
      continue;
    }
    Send(it->second, UnloadShard{it->first});
    it = shards_.erase(it);
  }
}

}  // namespace millrace::cluster
