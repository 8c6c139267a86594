#include "cluster/control/slot_assignment.h"

#include <algorithm>
#include <optional>
#include <set>

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
    ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) { return Named(stage, rank); });
    ForEachEmptySlot([&](const LayoutStage& stage, size_t rank) { return OfNode(stage, rank); });
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
        if (const auto worker = choose(stage, rank)) stage.ranks[rank].worker = worker;
      }
    }
  }
  template <typename Choose>
  void ForEachEmptySlot(const Choose& choose) {
    ForEachSlot([&](const LayoutStage& stage, size_t rank) {
      return stage.ranks[rank].worker ? std::nullopt : choose(stage, rank);
    });
  }

  std::optional<WorkerId> Named(const LayoutStage& stage, size_t rank) const {
    const auto* named = UsableOf(members_, NameFor(layout_, stage.plan, rank));
    if (named == nullptr || HasSlot(stage, named->id)) return std::nullopt;
    return named->id;
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
      return IsFree(entry.second) && Holds(entry.second, stage.plan.layers, PlaceOf(stage, rank));
    });
  }

  // The best of the free workers.
  std::optional<WorkerId> Free(const LayoutStage& stage, size_t rank) const {
    const TensorRank place = PlaceOf(stage, rank);
    std::optional<WorkerId> best;
    int best_score = 0;
    for (const auto& [id, worker] : members_.all()) {
      if (!IsFree(worker)) continue;
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
  std::set<WorkerId> awaited_;  // members that the plan names
};

}  // namespace

void FillSlots(Layout& layout, const Layout* other, const Membership& members) {
  Filler(layout, other, members).Run();
}

bool NamedWorkerIsReplaced(const Layout& layout, const Membership& members) {
  return std::ranges::any_of(layout.stages, [&](const LayoutStage& stage) {
    for (size_t rank = 0; rank < stage.ranks.size() && !stage.closing; ++rank) {
      const auto* named = UsableOf(members, NameFor(layout, stage.plan, rank));
      if (named != nullptr && stage.ranks[rank].worker && !HasSlot(stage, named->id)) return true;
    }
    return false;
  });
}

}  // namespace millrace::cluster
