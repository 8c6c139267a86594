// Who holds what: filling a layout's slots, loading, going from one layout to the next.
//
// A change of plan is one numbered transaction: the next layout's missing weights are loaded beside
// the old ones, then requests go over, then what nobody needs any more is dropped. Until the moment
// everything of it is loaded, nothing of the old one has changed.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "cluster/controller.h"

namespace millrace::cluster {

bool Controller::HasSlot(const Layout& layout, WorkerId worker) const {
  return std::ranges::any_of(layout.stages, [&](const LayoutStage& stage) {
    return std::ranges::find(stage.ranks, worker, &Slot::worker) != stage.ranks.end();
  });
}

Slot* Controller::FindSlot(ShardId shard) {
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

// The ranks of a stage are to meet again, with the next Staff. False: the shard is no rank of any.
bool Controller::MakeGroupAnew(ShardId of_rank) {
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

// In order of preference: the worker the plan names, who holds these layers (in the other layout,
// or since an earlier life), who came first. nullopt: nobody is free.
std::optional<WorkerId> Controller::PickWorker(const Layout& layout, const Layout* other,
                                               const LayoutStage& stage, int rank) const {
  std::optional<WorkerId> best;
  int best_score = -1;
  const TensorRank wanted{rank, static_cast<int>(stage.ranks.size())};
  for (const auto& [id, worker] : workers_) {
    if (worker.draining || !worker.unusable.empty() || HasSlot(layout, id)) continue;
    int score = 0;
    for (const HeldShard& held : worker.join.held) {
      if (held.layers == stage.plan.layers && held.rank == wanted) score = 2;
    }
    if (other != nullptr) {
      for (const LayoutStage& s : other->stages) {
        if (static_cast<int>(s.ranks.size()) != wanted.size) continue;
        if (s.ranks[static_cast<size_t>(rank)].worker != id) continue;
        // As much of what is wanted as it has.
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

void Controller::Staff(Time) {
  if (next_) StaffLayout(*next_, &layout_);
  StaffLayout(layout_, next_ ? &*next_ : nullptr);
}

void Controller::StaffLayout(Layout& layout, const Layout* other) {
  // Whoever has been taken out of a layout that is being left gets nothing new from it. While the
  // next one lacks workers, it is not being left: it may have to serve for long.
  const bool left =
      &layout == &layout_ && next_ && std::ranges::all_of(next_->stages, &LayoutStage::Staffed);
  const auto held = [&](const LayoutStage& stage, size_t rank) {
    const TensorRank place{static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
    return std::ranges::any_of(workers_, [&](const auto& entry) {
      const auto& [id, worker] = entry;
      return !worker.draining && worker.unusable.empty() && !HasSlot(layout, id) &&
             std::ranges::any_of(worker.join.held, [&](const HeldShard& shard) {
               return shard.layers == stage.plan.layers && shard.rank == place;
             });
    });
  };
  // First those who hold layers since an earlier life: given others', they would load again.
  for (LayoutStage& stage : layout.stages) {
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      Slot& slot = stage.ranks[rank];
      if (slot.worker || left || !held(stage, rank)) continue;
      slot.worker = PickWorker(layout, other, stage, static_cast<int>(rank));
    }
  }
  for (LayoutStage& stage : layout.stages) {
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      Slot& slot = stage.ranks[rank];
      if (slot.worker || left) continue;
      slot.worker = PickWorker(layout, other, stage, static_cast<int>(rank));
    }
    if (stage.Staffed()) AskToLoad(stage);
  }
}

// Peers that spare a worker the disk: first who has loaded some of it, then who has any weights.
std::vector<WorkerAddress> Controller::WeightSources(WorkerId of, LayerRange layers) const {
  std::set<WorkerId> holders;
  for (const LayoutStage& stage : layout_.stages) {
    if (stage.plan.layers.begin >= layers.end || stage.plan.layers.end <= layers.begin) continue;
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && slot.loaded) holders.insert(*slot.worker);
    }
  }
  std::vector<WorkerAddress> near, far;
  for (const auto& [id, worker] : workers_) {
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

void Controller::AskToLoad(LayoutStage& stage) {
  const bool any_new = std::ranges::any_of(stage.ranks, [](const Slot& s) { return !s.asked; });
  if (!any_new) return;
  const uint64_t group = HashCounter(options_.secret, NextId());
  std::vector<WorkerAddress> ranks;
  for (const Slot& slot : stage.ranks) ranks.push_back(workers_.at(*slot.worker).address);
  for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
    Slot& slot = stage.ranks[rank];
    const TensorRank place{static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
    // A stage of one that another layout has on the same worker is the same shard.
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
                   .max_batched_tokens = options_.scheduler.max_num_batched_tokens};
    load.sources = WeightSources(*slot.worker, stage.plan.layers);
    Send(*slot.worker, std::move(load));
    // After it, so that the worker can keep the weights and make only the collective anew.
    if (old != ShardId() && shards_.erase(old) > 0) Send(*slot.worker, UnloadShard{old});
  }
}

void Controller::On(ConnectionId, const ShardProgress& message, Time) {
  if (Slot* slot = FindSlot(message.shard)) {
    slot->bytes_done = message.bytes_done;
    slot->bytes_total = message.bytes_total;
  }
}

void Controller::On(ConnectionId from, const ShardLoaded& message, Time now) {
  Worker* worker = ByConnection(from);
  if (FindSlot(message.shard) == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  // Its ranks have not met: one was lost or late, which is no fault of this one.
  if (message.status.code() == StatusCode::kUnavailable && MakeGroupAnew(message.shard)) {
    MR_LOG(warn, "worker {}: {}", Printable(worker->join.name),
           Printable(message.status.message()));
    return Staff(now);
  }
  if (!message.status.ok()) {
    MR_LOG(error, "worker {} cannot load its layers: {}", Printable(worker->join.name),
           Printable(message.status.message()));
    worker->unusable = message.status.message();
    shards_.erase(message.shard);
    VacateSlots(layout_, worker->id);
    if (next_) VacateSlots(*next_, worker->id);
    return Staff(now);
  }
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
  if (layout_.Up()) {
    if (!router_ && layout_.ways.empty()) MakeRouter(now);
    MR_LOG(info, "every layer of {} is loaded", Printable(options_.model));
  }
  if (router_) {
    for (size_t i = 0; i < layout_.stages.size(); ++i) {
      router_->SetStageUp(static_cast<int>(i), layout_.stages[i].Up(), now);
    }
  }
  try_waiting_ = true;
  OpenWays(now);
  MaybeSwitch(now);
}

void Controller::MakeRouter(Time now) {
  router_.reset();
  if (!layout_.ways.empty()) return;
  std::vector<int64_t> kv;
  for (const LayoutStage& stage : layout_.stages) kv.push_back(stage.KvTokenLayers());
  auto router = Router::Create(layout_.plan, std::move(kv), options_.router);
  if (!router.ok()) {
    MR_LOG(error, "the plan cannot be routed: {}", router.status().message());
    return;
  }
  router_.emplace(std::move(*router));
  for (auto& [id, tracked] : requests_) {
    tracked.route.reset();
    if (!tracked.lane) (void)SubmitToRouter(id, tracked, now);
  }
}

Status Controller::Prepare(Layout layout, Time now) {
  if (layout.ways.empty()) {  // a branching plan: see now whether it can be routed at all
    const std::vector<int64_t> roomy(layout.stages.size(), int64_t{1} << 40);
    MR_RETURN_IF_ERROR(Router::Create(layout.plan, roomy, options_.router).status());
  } else {
    const auto has = [&](StageRole role) {
      return std::ranges::find(layout.ways, role, &Way::role) != layout.ways.end();
    };
    if (has(StageRole::kPrefill) && !has(StageRole::kDecode) && !has(StageRole::kBoth)) {
      return InvalidArgument("the plan has stages for prefill and none that decode");
    }
    if (!has(StageRole::kBoth) && !has(StageRole::kPrefill)) {
      return InvalidArgument("the plan has stages for decode and none for prompts");
    }
  }
  ++counters_.layouts;
  layout.plan.epoch = ++epoch_;
  if (layout_.stages.empty() || !std::ranges::any_of(layout_.stages, [](const LayoutStage& s) {
        return std::ranges::any_of(s.ranks, &Slot::asked);
      })) {
    layout_ = std::move(layout);  // nothing runs yet
    router_.reset();
    Staff(now);
    return OkStatus();
  }
  next_ = std::move(layout);
  unlike_since_.reset();
  Staff(now);
  MaybeSwitch(now);
  return OkStatus();
}

// Another number of workers wants another automatic layout, once it has lasted.
void Controller::FollowWorkers(Time now) {
  if (!layout_.automatic || !options_.elastic) return;
  const Layout& target = next_ ? *next_ : layout_;
  const int usable = UsableWorkers() / options_.tensor_parallel;
  const int wanted = std::clamp(usable, 1, std::min(options_.stages, options_.num_layers));
  const bool draining = std::ranges::any_of(target.stages, [&](const LayoutStage& stage) {
    return std::ranges::any_of(stage.ranks, [&](const Slot& slot) {
      return slot.worker && workers_.at(*slot.worker).draining;
    });
  });
  if (usable < 1 || (std::ssize(target.stages) == wanted && !draining)) {
    unlike_since_.reset();
    return;
  }
  if (!unlike_since_ || std::exchange(unlike_usable_, usable) != usable) unlike_since_ = now;
  if (!draining && now - *unlike_since_ < options_.replace_limit) return;
  auto layout = MakeLayout(
      EvenPlan(options_.model, options_.num_layers, wanted, options_.tensor_parallel), {});
  if (!layout.ok()) return;
  layout->automatic = true;
  MR_LOG(info, "laying the model out over {} stage{}", wanted, wanted == 1 ? "" : "s");
  if (const Status ok = Prepare(std::move(*layout), now); !ok.ok()) {
    MR_LOG(error, "cannot: {}", ok.message());
  }
}

void Controller::MaybeSwitch(Time now) {
  if (!next_ || !next_->Up()) return;
  layout_ = std::move(*next_);
  next_.reset();
  MR_LOG(info, "plan {} is in force", layout_.plan.epoch);
  // A lane whose every hop is still a hop of the plan goes on as it is.
  for (auto& [id, lane] : lanes_) {
    bool kept = !lane.retiring;
    Route route;
    for (const LaneHop& hop : lane.hops) {
      std::optional<int> place;
      for (size_t i = 0; i < layout_.stages.size(); ++i) {
        const LayoutStage& stage = layout_.stages[i];
        const bool same = std::ranges::equal(stage.ranks, hop.shards, {}, &Slot::shard);
        if (same && stage.plan.role == lane.role) place = static_cast<int>(i);
      }
      kept = kept && place.has_value();
      if (kept) route.push_back({*place, hop.layers});
    }
    kept = kept && !layout_.ways.empty() &&
           std::ranges::any_of(layout_.ways, [&, role = lane.role](const Way& way) {
             return way.role == role &&
                    std::ranges::equal(way.route, route, [](const Hop& a, const Hop& b) {
                      return a.stage == b.stage && a.layers == b.layers;
                    });
           });
    if (kept) {
      lane.route = std::move(route);
    } else {
      lane.retiring = true;
    }
  }
  MakeRouter(now);
  OpenWays(now);
  try_waiting_ = true;
  RetireLanes(now);
}

// What no layout and no lane needs.
void Controller::DropUnusedShards() {
  std::set<ShardId> needed;
  for (const Layout* layout : {&layout_, next_ ? &*next_ : nullptr}) {
    if (layout == nullptr) continue;
    for (const LayoutStage& stage : layout->stages) {
      for (const Slot& slot : stage.ranks) {
        if (slot.worker) needed.insert(slot.shard);
      }
    }
  }
  for (const auto& [id, lane] : lanes_) {
    for (const LaneHop& hop : lane.hops) needed.insert(hop.shards.begin(), hop.shards.end());
  }
  for (const auto& [id, remains] : remains_) {
    for (const LaneHop& hop : remains.hops) needed.insert(hop.shards.begin(), hop.shards.end());
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
