#include "cluster/control/slot_assignment.h"

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

namespace millrace::cluster {
namespace {

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

bool Holds(const Membership::Worker& worker, LayerRange layers, TensorRank rank) {
  return std::ranges::any_of(worker.join.held, [&](const HeldShard& held) {
    return held.layers == layers && held.rank == rank;
  });
}

// How well the worker's slot in `other` prepares it for that rank of the stage. 0: not at all.
int ScoreOf(const Layout& other, WorkerId worker, LayerRange layers, TensorRank rank) {
  int score = 0;
  for (const LayoutStage& stage : other.stages) {
    if (static_cast<int>(stage.ranks.size()) != rank.size) continue;
    if (stage.ranks[static_cast<size_t>(rank.rank)].worker != worker) continue;
    // The more of the wanted layers it has, the better.
    const int shared = std::min(stage.plan.layers.end, layers.end) -
                       std::max(stage.plan.layers.begin, layers.begin);
    score = std::max(score, stage.plan.layers == layers ? 1 << 20 : 2 + shared);
  }
  return score;
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
    // First the slots whose layers a free worker holds. With any other slot it would have to load.
    for (const bool only_held : {true, false}) {
      ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) {
        if (const auto same = OfNode(stage, rank)) return same;  // chosen a moment ago
        if (only_held && !SomeoneHolds(stage, rank)) return std::optional<WorkerId>();
        return Free(stage, rank);
      });
    }
  }

 private:
  template <typename Choose>
  void ForEachSlot(const Choose& choose) {
    for (LayoutStage& stage : layout_.stages) {
      for (size_t rank = 0; rank < stage.ranks.size() && !stage.closing; ++rank) {
        const std::optional<WorkerId> worker = choose(stage, rank);
        if (!worker) continue;
        const BitClass bits = members_.at(*worker).bits;
        stage.ranks[rank].worker = worker;
        stage.ranks[rank].bits = bits;
        stage.last_bits = bits;
        group_bits_.emplace(GroupOf(stage), bits);
      }
    }
  }
  template <typename Choose>
  void ForEachEmptySlot(const Choose& choose) {
    ForEachSlot([&](const LayoutStage& stage, size_t rank) {
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
    const bool may = named != nullptr && !HasSlot(stage, named->id) && Fits(stage, named->bits);
    return may ? std::optional(named->id) : std::nullopt;
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

  static TensorRank PlaceOf(const LayoutStage& stage, size_t rank) {
    return {static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
  }

  bool SomeoneHolds(const LayoutStage& stage, size_t rank) const {
    return std::ranges::any_of(members_.all(), [&](const auto& entry) {
      return IsFree(entry.second) && Fits(stage, entry.second.bits) &&
             Holds(entry.second, stage.plan.layers, PlaceOf(stage, rank));
    });
  }

  // The best of the free workers.
  std::optional<WorkerId> Free(const LayoutStage& stage, size_t rank) const {
    const TensorRank place = PlaceOf(stage, rank);
    std::optional<WorkerId> best;
    int best_score = 0;
    for (const auto& [id, worker] : members_.all()) {
      if (!IsFree(worker) || !Fits(stage, worker.bits)) continue;
      int score = Holds(worker, stage.plan.layers, place) ? 3 : 1;
      if (other_ != nullptr) {
        score = std::max(score, 1 + ScoreOf(*other_, id, stage.plan.layers, place));
      }
      if (score <= best_score) continue;
      best_score = score;
      best = id;
    }
    return best;
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
