#include "cluster/control/layout/slot_assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "plan/spot/assignment.h"

namespace millrace::cluster {
namespace {

constexpr size_t kAbsentBytesMax = 200;  // of a list of names, before its last one

// The node that the plan intends for the rank. nullopt: any.
std::optional<NodeIndex> NodeOf(const StagePlan& stage, size_t rank) {
  return rank < stage.nodes.size() ? std::optional(stage.nodes[rank]) : std::nullopt;
}

// The worker that the plan names for the rank. Empty: none.
std::string_view NameFor(const Layout& layout, const StagePlan& stage, size_t rank) {
  const std::optional<NodeIndex> node = NodeOf(stage, rank);
  if (!node || static_cast<size_t>(*node) >= layout.node_names.size()) return {};
  return layout.node_names[static_cast<size_t>(*node)];
}

// The usable member of this name. Null: there is none.
const Membership::Worker* UsableOf(const Membership& members, std::string_view name) {
  const auto found = std::ranges::find_if(members.all(), [&](const auto& entry) {
    return !name.empty() && entry.second.join.name == name && entry.second.Usable();
  });
  return found == members.all().end() ? nullptr : &found->second;
}

// How much of a rank's layers another one has. A rank of another degree has other parts of them.
int64_t Shared(LayerRange layers, TensorRank rank, LayerRange other_layers, TensorRank other_rank) {
  return rank == other_rank ? layers.Overlap(other_layers).size() : 0;
}

TensorRank RankOf(const LayoutStage& stage, size_t rank) {
  return {static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
}

// How much of that rank's weights the worker has: from its slots in `other`, or from an earlier
// session. Its KV lies with them. Of equals, those in use count more, and most a shard that serves
// unchanged.
int64_t KeptBy(const Membership::Worker& worker, const Layout* other, LayerRange layers,
               TensorRank rank) {
  constexpr int64_t kLayer = 4;
  int64_t kept = 0;
  for (const HeldShard& held : worker.join.held) {
    kept = std::max(kept, kLayer * Shared(layers, rank, held.layers, held.rank));
  }
  if (other == nullptr) return kept;
  for (const LayoutStage& stage : other->stages) {
    for (size_t r = 0; r < stage.ranks.size(); ++r) {
      const int64_t shared = Shared(layers, rank, stage.plan.layers, RankOf(stage, r));
      if (stage.ranks[r].worker != worker.id || shared == 0) continue;
      kept = std::max(kept, kLayer * shared + (stage.plan.layers == layers ? 2 : 1));
    }
  }
  return kept;
}

// Fills the empty slots of one layout.
class Filler {
 public:
  Filler(Layout& layout, const Layout* other, const Membership& members)
      : layout_(layout), other_(other), members_(members) {
    ForEachSlot([&](LayoutStage& stage, size_t rank) {
      const auto* named = UsableOf(members_, NameFor(layout_, stage.plan, rank));
      if (named != nullptr) awaited_.insert(named->id);
      return std::optional<WorkerId>();
    });
  }

  void Run() {
    for (const LayoutStage& stage : layout_.stages) {
      if (const auto bits = stage.bits()) group_bits_.emplace(GroupOf(stage), *bits);
    }
    ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) { return Named(stage, rank); });
    ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) { return OfNode(stage, rank); });
    ChooseClasses();
    MatchThoseThatHoldLayers();
    ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) {
      const auto same = OfNode(stage, rank);  // chosen a moment ago
      return same ? same : Free(stage);
    });
  }

 private:
  template <typename Choose>
  void ForEachSlot(const Choose& choose) {
    for (LayoutStage& stage : layout_.stages) {
      for (size_t rank = 0; rank < stage.ranks.size() && !stage.closing; ++rank) {
        if (const std::optional<WorkerId> worker = choose(stage, rank)) {
          Assign(stage, rank, *worker);
        }
      }
    }
  }
  void Assign(LayoutStage& stage, size_t rank, WorkerId worker) {
    const BitClass bits = members_.at(worker).bits;
    stage.ranks[rank].worker = worker;
    stage.ranks[rank].bits = bits;
    stage.ranks[rank].protocol = members_.at(worker).join.identity.protocol.newest;
    stage.last_bits = bits;
    group_bits_.emplace(GroupOf(stage), bits);
  }
  template <typename Choose>
  void ForEachEmptySlot(const Choose& choose) {
    ForEachSlot([&](LayoutStage& stage, size_t rank) {
      return stage.ranks[rank].worker ? std::nullopt : choose(stage, rank);
    });
  }

  int GroupOf(const LayoutStage& stage) const {
    return layout_.groups[static_cast<size_t>(&stage - layout_.stages.data())];
  }

  // Whether a worker of this class may be in the stage's group.
  bool Fits(const LayoutStage& stage, BitClass bits) const {
    const auto group = group_bits_.find(GroupOf(stage));
    return group == group_bits_.end() || group->second == bits;
  }

  // How many workers the group lacks.
  int PlacesIn(int group) const {
    std::set<NodeIndex> nodes;
    int places = 0;
    for (const LayoutStage& stage : layout_.stages) {
      if (GroupOf(stage) != group || stage.closing) continue;
      for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
        const std::optional<NodeIndex> node = NodeOf(stage.plan, rank);
        if (!stage.ranks[rank].worker && (!node || nodes.insert(*node).second)) ++places;
      }
    }
    return places;
  }

  // The class of the group's last workers, which may come back.
  std::optional<BitClass> LastOf(int group) const {
    const auto stage = std::ranges::find_if(layout_.stages, [&](const LayoutStage& each) {
      return GroupOf(each) == group && each.last_bits;
    });
    return stage == layout_.stages.end() ? std::nullopt : stage->last_bits;
  }

  // Gives a class to every group that has no worker, as far as there are free workers; the largest
  // first. The best is a class that can fill the group, serves already, and has most free workers.
  void ChooseClasses() {
    std::vector<std::pair<BitClass, int>> free;  // workers by class, the first that joined first
    for (const auto& [id, worker] : members_.all()) {
      if (!IsFree(worker)) continue;
      auto found = std::ranges::find(free, worker.bits, &std::pair<BitClass, int>::first);
      if (found == free.end()) found = free.insert(free.end(), {worker.bits, 0});
      ++found->second;
    }
    if (free.empty()) return;
    std::vector<std::pair<int, int>> groups;  // places, group
    for (const int group : std::set<int>(layout_.groups.begin(), layout_.groups.end())) {
      groups.emplace_back(PlacesIn(group), group);
    }
    // Groups that have a class need its workers first.
    std::ranges::stable_sort(groups, std::ranges::greater(), [&](const auto& one) {
      return std::pair(group_bits_.contains(one.second), one.first);
    });
    for (const auto& [places, group] : groups) {
      const auto known = group_bits_.find(group);
      std::optional<BitClass> bits =
          known == group_bits_.end() ? LastOf(group) : std::optional(known->second);
      if (!bits) {
        bits = std::ranges::max_element(free, {}, [&, needed = places](const auto& one) {
                 return std::tuple(one.second >= needed, Serves(one.first), one.second);
               })->first;
      }
      group_bits_.emplace(group, *bits);
      const auto used = std::ranges::find(free, *bits, &std::pair<BitClass, int>::first);
      if (used != free.end()) used->second -= places;
    }
  }

  bool Serves(BitClass bits) const {
    return std::ranges::any_of(std::array<const Layout*, 2>{&layout_, other_}, [&](const auto* in) {
      return in != nullptr && std::ranges::any_of(in->stages, [&](const LayoutStage& stage) {
               return stage.bits() == bits;
             });
    });
  }

  std::optional<WorkerId> Named(const LayoutStage& stage, size_t rank) const {
    const auto* named = UsableOf(members_, NameFor(layout_, stage.plan, rank));
    const bool may = named != nullptr && !HasSlot(stage, named->id) && Fits(stage, named->bits) &&
                     !StandsInElsewhere(named->id, NodeOf(stage.plan, rank));
    return may ? std::optional(named->id) : std::nullopt;
  }

  // Whether the worker has the place of another node: it got that while the stage of its own node
  // was closing.
  bool StandsInElsewhere(WorkerId worker, std::optional<NodeIndex> node) const {
    return std::ranges::any_of(layout_.stages, [&](const LayoutStage& stage) {
      for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
        if (stage.ranks[rank].worker == worker && NodeOf(stage.plan, rank) != node) return true;
      }
      return false;
    });
  }

  // The worker that stands in for the node in another stage already.
  std::optional<WorkerId> OfNode(const LayoutStage& stage, size_t rank) const {
    const std::optional<NodeIndex> node = NodeOf(stage.plan, rank);
    for (const LayoutStage& other : layout_.stages) {
      for (size_t r = 0; node && r < other.ranks.size(); ++r) {
        const std::optional<WorkerId>& worker = other.ranks[r].worker;
        if (!worker || NodeOf(other.plan, r) != node || HasSlot(stage, *worker)) continue;
        if (members_.at(*worker).Usable()) return worker;
      }
    }
    return std::nullopt;
  }

  // Whether the worker has no slot, and the plan names none for it.
  bool IsFree(const Membership::Worker& worker) const {
    return worker.Usable() && !HasSlot(layout_, worker.id) && !awaited_.contains(worker.id);
  }

  // Gives free workers to slots so that as few bytes as possible have to be loaded: a matching of
  // greatest weight (SpotServe section 3.3). Slots of one node go to one worker. Workers that would
  // keep nothing get none.
  void MatchThoseThatHoldLayers() {
    using Place = std::vector<std::pair<LayoutStage*, size_t>>;  // the slots of one node
    std::vector<Place> places;
    std::map<NodeIndex, size_t> place_of;
    ForEachEmptySlot([&](LayoutStage& stage, size_t rank) {
      const std::optional<NodeIndex> node = NodeOf(stage.plan, rank);
      const auto [known, added] =
          node ? place_of.emplace(*node, places.size()) : std::pair(place_of.end(), true);
      if (added) places.emplace_back();
      places[added ? places.size() - 1 : known->second].emplace_back(&stage, rank);
      return std::optional<WorkerId>();
    });
    std::vector<const Membership::Worker*> free;
    for (const auto& [id, worker] : members_.all()) {
      if (IsFree(worker)) free.push_back(&worker);
    }
    if (std::max(places.size(), free.size()) > plan::spot::kAssignmentRowsMax) return;
    std::vector<int64_t> weights;
    for (const Place& place : places) {
      for (const Membership::Worker* worker : free) {
        int64_t& kept = weights.emplace_back(0);
        for (const auto& [stage, rank] : place) {
          if (!Fits(*stage, worker->bits)) continue;
          kept += KeptBy(*worker, other_, stage->plan.layers, RankOf(*stage, rank));
        }
      }
    }
    if (std::ranges::count(weights, 0) == std::ssize(weights)) return;
    const auto chosen = plan::spot::AssignMaxWeight(static_cast<int>(places.size()),
                                                    static_cast<int>(free.size()), weights);
    for (size_t i = 0; i < places.size(); ++i) {
      if (!chosen[i] || weights[i * free.size() + static_cast<size_t>(*chosen[i])] == 0) continue;
      for (const auto& [stage, rank] : places[i]) {
        Assign(*stage, rank, free[static_cast<size_t>(*chosen[i])]->id);
      }
    }
  }

  // The free worker that joined first, of those with the newest protocol.
  std::optional<WorkerId> Free(const LayoutStage& stage) const {
    const Membership::Worker* best = nullptr;
    const auto newest = [](const Membership::Worker& w) { return w.join.identity.protocol.newest; };
    for (const auto& [id, worker] : members_.all()) {
      if (!IsFree(worker) || !Fits(stage, worker.bits)) continue;
      if (best == nullptr || newest(worker) > newest(*best)) best = &worker;
    }
    return best == nullptr ? std::nullopt : std::optional(best->id);
  }

  Layout& layout_;
  const Layout* const other_;
  const Membership& members_;
  std::set<WorkerId> awaited_;          // members that the plan names
  std::map<int, BitClass> group_bits_;  // of groups (Layout::groups) with workers
};

}  // namespace

void FillSlots(Layout& layout, const Layout* other, const Membership& members) {
  Filler(layout, other, members).Run();
}

bool NamedWorkerIsReplaced(const Layout& layout, const Membership& members) {
  return std::ranges::any_of(layout.stages, [&](const LayoutStage& stage) {
    for (size_t rank = 0; rank < stage.ranks.size() && !stage.closing; ++rank) {
      const auto* named = UsableOf(members, NameFor(layout, stage.plan, rank));
      if (named == nullptr || !stage.ranks[rank].worker || HasSlot(stage, named->id)) continue;
      if (stage.bits() == named->bits) return true;
    }
    return false;
  });
}

Status CheckNames(const Layout& layout, const Membership& members) {
  std::set<std::string_view> absent;
  for (const LayoutStage& stage : layout.stages) {
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      const std::string_view name = NameFor(layout, stage.plan, rank);
      const bool joined = std::ranges::any_of(
          members.all(), [&](const auto& entry) { return entry.second.join.name == name; });
      if (!name.empty() && !joined) absent.insert(name);
    }
  }
  if (absent.empty()) return OkStatus();
  std::string names;
  for (const std::string_view name : absent) {
    names += (names.empty() ? "" : ", ") + Printable(name);
    if (names.size() > kAbsentBytesMax) break;
  }
  return FailedPrecondition(fmt::format(
      "the plan names {}, and no worker of {} has joined; `millrace status` lists the workers",
      names, absent.size() == 1 ? "that name" : "these names"));
}

Status CheckBits(const Layout& layout, const Membership& members) {
  std::map<int, const Membership::Worker*> first;  // that the plan names, by group
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    const StagePlan& stage = layout.stages[i].plan;
    for (size_t rank = 0; rank < layout.stages[i].ranks.size(); ++rank) {
      const auto* named = UsableOf(members, NameFor(layout, stage, rank));
      if (named == nullptr) continue;
      const auto* other = first.emplace(layout.groups[i], named).first->second;
      if (other->bits == named->bits) continue;
      return FailedPrecondition(fmt::format(
          "the plan passes activations or KV between {} and {}, whose bits differ (numeric classes "
          "'{}' and '{}'); give both the same --activations and the same version of Millrace and "
          "of the C library, or plan a pipeline for each",
          Printable(other->join.name), Printable(named->join.name),
          Printable(other->join.identity.numeric_class),
          Printable(named->join.identity.numeric_class)));
    }
  }
  return OkStatus();
}

std::string WhyNoSlot(const Layout& layout, const Membership& members,
                      const Membership::Worker& worker) {
  if (!worker.Usable() || HasSlot(layout, worker.id)) return "";
  std::optional<BitClass> theirs;        // of the pipeline that it is named for, or else of any
  const StagePlan* named_for = nullptr;  // the stage that the plan names it for
  bool serves = false;                   // some pipeline is of its class
  for (size_t i = 0; i < layout.stages.size() && named_for == nullptr; ++i) {
    const StagePlan& stage = layout.stages[i].plan;
    for (size_t rank = 0; rank < layout.stages[i].ranks.size(); ++rank) {
      if (NameFor(layout, stage, rank) == worker.join.name) named_for = &stage;
    }
    for (size_t k = 0; k < layout.stages.size(); ++k) {
      const std::optional<BitClass> bits = layout.stages[k].bits();
      const bool counts = named_for == nullptr || layout.groups[k] == layout.groups[i];
      serves = serves || (counts && bits == worker.bits);
      if (counts && bits && (!theirs || named_for != nullptr)) theirs = bits;
    }
  }
  if (!theirs || theirs == worker.bits || (serves && named_for == nullptr)) return "";
  const std::string place =
      named_for == nullptr
          ? "it is spare, because its"
          : fmt::format("it cannot have layers {}-{} as the plan says, because its",
                        named_for->layers.begin, named_for->layers.end - 1);
  return fmt::format(
      "{} bits differ from those of the other workers (numeric class '{}', theirs is '{}'); give "
      "all workers of a pipeline the same --activations and the same version",
      place, Printable(worker.join.identity.numeric_class),
      Printable(members.NumericClassOf(*theirs)));
}

}  // namespace millrace::cluster
