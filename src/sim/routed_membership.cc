// A plan whose nodes come and go. The router learns which stages are present. Pipelines through a
// lost stage end, and their requests ask the router for another route with the tokens they have.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sim/routed.h"

namespace millrace::sim {

void Routed::BeginMembership() {
  if (options_.membership.empty()) return;
  for (size_t i = 0; i < stages_.size(); ++i) {
    router_.SetStageUp(static_cast<int>(i), false, Time{});
  }
}

// As in Service: none if another event comes first or no request waits for it.
std::optional<Time> Routed::NextChange() const {
  if (next_change_ == options_.membership.size()) return std::nullopt;
  const Time at = options_.membership[next_change_].at;
  if (events_.empty()) return router_.queued() == 0 ? std::nullopt : std::optional(at);
  return at <= events_.next_time() ? std::optional(at) : std::nullopt;
}

void Routed::Change(Time now) {
  const MembershipChange& change = options_.membership[next_change_++];
  switch (availability_.Apply(change, now)) {
    case Availability::Change::kNone: return;
    case Availability::Change::kReady: SetStages(change.instance, true, now); break;
    case Availability::Change::kLeaving: SetStages(change.instance, false, now); break;
    case Availability::Change::kLost:
      SetStages(change.instance, false, now);
      Lose(change.instance, now);
      break;
  }
  FollowDecisions(now);
}

// A stage is present if all its nodes are.
void Routed::SetStages(int node, bool up, Time now) {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<NodeIndex>& nodes = options_.plan.stages[i].nodes;
    if (std::ranges::find(nodes, node) == nodes.end()) continue;
    const bool all = std::ranges::all_of(nodes, [&](int n) { return availability_.ready(n); });
    router_.SetStageUp(static_cast<int>(i), up && all, now);
  }
}

void Routed::Lose(int node, Time now) {
  std::vector<bool> lost(stages_.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<NodeIndex>& nodes = options_.plan.stages[i].nodes;
    lost[i] = std::ranges::find(nodes, node) != nodes.end();
    if (lost[i]) LoseStage(static_cast<int>(i), now);
  }
  std::vector<sched::NewRequest> gone;
  std::erase_if(pipelines_, [&](auto& entry) {
    Pipeline& pipeline = *entry.second;
    if (std::ranges::none_of(pipeline.route, [&](const Hop& hop) { return lost[hop.stage]; })) {
      return false;
    }
    for (const sched::RequestInfo& info : pipeline.scheduler->InspectAll(now)) {
      moves_.replayed += info.computed_tokens > 0;
      moves_.replayed_tokens += static_cast<uint64_t>(info.computed_tokens);
    }
    for (sched::DetachedRequest& left : pipeline.scheduler->DetachAll(now)) {
      gone.push_back(std::move(left.request));
    }
    lost_ += pipeline.scheduler->Stats();
    pipeline.lost = true;
    return true;
  });
  // Releases all their reservations before the first request asks again.
  for (const sched::NewRequest& request : gone) router_.Release(request.id, 0, now);
  std::ranges::sort(gone, {}, [](const sched::NewRequest& r) { return r.id; });
  for (sched::NewRequest& request : gone) {
    const SimRequest& asked = recorder_.request(request.id);
    const Status queued = router_.Submit({.id = request.id,
                                          .prompt_tokens = asked.prompt_tokens,
                                          .output_tokens = asked.output_tokens},
                                         now);
    if (!queued.ok()) {
      recorder_.Refused(request.id);
      continue;
    }
    begun_.emplace(request.id, std::move(request));
  }
  moves_.waited_most = std::max(moves_.waited_most, static_cast<uint64_t>(router_.queued()));
}

void Routed::LoseStage(int index, Time now) {
  Stage& stage = stages_[index];
  if (!stage.running.empty()) stage.busy = stage.busy - (stage.end - now);
  for (const int slot : std::exchange(stage.running, {})) Free(slot);
  for (const int slot : std::exchange(stage.waiting, {})) Free(slot);
  ++stage.life;
}

}  // namespace millrace::sim
