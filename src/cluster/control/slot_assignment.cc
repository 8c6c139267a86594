#include "cluster/control/slot_assignment.h"

#include <algorithm>
#include <optional>

namespace millrace::cluster {
namespace {

bool IsFree(const Membership::Worker& worker, const Layout& layout) {
  return worker.Usable() && !HasSlot(layout, worker.id);
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

// Whether the plan names the worker for that rank of the stage.
bool IsNamed(const Layout& layout, const StagePlan& stage, int rank, const std::string& name) {
  const size_t at = static_cast<size_t>(rank) % std::max<size_t>(1, stage.nodes.size());
  if (at >= stage.nodes.size()) return false;
  const auto node = static_cast<size_t>(stage.nodes[at]);
  return node < layout.node_names.size() && layout.node_names[node] == name;
}

std::optional<WorkerId> ChooseWorker(const Layout& layout, const Layout* other,
                                     const LayoutStage& stage, TensorRank rank,
                                     const Membership& members) {
  std::optional<WorkerId> best;
  int best_score = -1;
  for (const auto& [id, worker] : members.all()) {
    if (!IsFree(worker, layout)) continue;
    int score = Holds(worker, stage.plan.layers, rank) ? 2 : 0;
    if (other != nullptr) score = std::max(score, ScoreOf(*other, id, stage.plan.layers, rank));
    if (IsNamed(layout, stage.plan, rank.rank, worker.join.name)) score = 1 << 24;
    if (score <= best_score) continue;
    best_score = score;
    best = id;
  }
  return best;
}

}  // namespace

void FillSlots(Layout& layout, const Layout* other, const Membership& members) {
  const auto meant = [&](const StagePlan& stage, TensorRank rank) {
    return std::ranges::any_of(members.all(), [&](const auto& entry) {
      const Membership::Worker& worker = entry.second;
      return IsFree(worker, layout) && (Holds(worker, stage.layers, rank) ||
                                        IsNamed(layout, stage, rank.rank, worker.join.name));
    });
  };
  // First the slots that a free worker is meant for: the plan names it, or it holds the layers from
  // an earlier session. With any other slot it would have to load again.
  for (const bool only_meant : {true, false}) {
    for (LayoutStage& stage : layout.stages) {
      const int size = static_cast<int>(stage.ranks.size());
      for (int i = 0; i < size && !stage.closing; ++i) {
        std::optional<WorkerId>& worker = stage.ranks[static_cast<size_t>(i)].worker;
        if (worker || (only_meant && !meant(stage.plan, {i, size}))) continue;
        worker = ChooseWorker(layout, other, stage, {i, size}, members);
      }
    }
  }
}

}  // namespace millrace::cluster
