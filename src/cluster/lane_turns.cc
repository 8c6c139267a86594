#include "cluster/lane_turns.h"

#include <algorithm>

namespace millrace::cluster {

bool LaneTurns::Entangled(const Lane& a, const Lane& b) {
  for (const std::vector<WorkerId>& one : a.groups) {
    for (const std::vector<WorkerId>& other : b.groups) {
      const bool shared = std::ranges::find_first_of(one, other) != one.end();
      if (shared && one != other) return true;
    }
  }
  return false;
}

void LaneTurns::Open(LaneId id, const std::vector<std::vector<WorkerId>>& workers) {
  Lane lane;
  for (const std::vector<WorkerId>& group : workers) {
    if (group.size() > 1) lane.groups.push_back(group);
  }
  for (auto& [other_id, other] : lanes_) {
    if (!Entangled(lane, other)) continue;
    lane.entangled.insert(other_id);
    entangled_lanes_ += other.entangled.empty() ? 1 : 0;
    other.entangled.insert(id);
  }
  entangled_lanes_ += lane.entangled.empty() ? 0 : 1;
  lanes_.emplace(id, std::move(lane));
}

void LaneTurns::Close(LaneId id, std::set<LaneId>& ask_again) {
  Idle(id, ask_again);
  const auto node = lanes_.extract(id);
  for (LaneId other_id : node.mapped().entangled) {
    Lane& other = lanes_.at(other_id);
    other.entangled.erase(id);
    entangled_lanes_ -= other.entangled.empty() ? 1 : 0;
  }
  entangled_lanes_ -= node.mapped().entangled.empty() ? 0 : 1;
}

// A lane that is at it adds no steps while another waits: its turn ends with those in flight.
bool LaneTurns::MayStep(LaneId id) {
  if (entangled_lanes_ == 0) return true;
  Lane& lane = lanes_.at(id);
  const bool may = std::ranges::none_of(lane.entangled, [&](LaneId other_id) {
    const Lane& other = lanes_.at(other_id);
    const bool before_it =
        other.waits_since && (!lane.waits_since || *other.waits_since < *lane.waits_since);
    return other.in_flight || before_it;
  });
  if (!may && !lane.waits_since) lane.waits_since = ++waits_;
  return may;
}

void LaneTurns::Stepped(LaneId id, bool in_flight, std::set<LaneId>& ask_again) {
  Lane& lane = lanes_.at(id);
  lane.waits_since.reset();
  lane.in_flight = in_flight;
  if (!in_flight) Idle(id, ask_again);
}

void LaneTurns::Idle(LaneId id, std::set<LaneId>& ask_again) {
  Lane& lane = lanes_.at(id);
  lane.in_flight = false;
  for (LaneId other : lane.entangled) {
    if (lanes_.at(other).waits_since) ask_again.insert(other);
  }
}

}  // namespace millrace::cluster
