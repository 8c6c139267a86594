// What is told of the cluster, and whether its tables agree.
#include <algorithm>

#include "base/check.h"
#include "cluster/controller.h"

namespace millrace::cluster {

std::optional<std::string> Controller::Missing() const {
  if (workers_.empty()) return "No worker has joined yet.";
  return layout_.Missing();
}

ClusterStatus Controller::Describe(Time now) const {
  ClusterStatus status{.term = options_.term,
                       .epoch = layout_.plan.epoch,
                       .plan = layout_.plan,
                       .missing = Missing(),
                       .changing = next_.has_value(),
                       .requests = std::ssize(requests_),
                       .waiting = std::ssize(waiting_),
                       .moving = std::ssize(moves_),
                       .counters = counters_};
  for (const auto& [id, worker] : workers_) {
    WorkerStatus& w = status.workers.emplace_back();
    w.id = id;
    w.name = worker.join.name;
    w.device = worker.join.device;
    w.control = worker.address.control;
    w.note = worker.unusable;
    w.draining = worker.draining;
    w.memory_bytes = worker.join.memory_bytes;
    w.batches = worker.beat.steps_done;
    w.silent = now - worker.last_beat;
    for (const LayoutStage& stage : layout_.stages) {
      for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
        const Slot& slot = stage.ranks[rank];
        if (slot.worker != id || !slot.loaded) continue;
        w.layers.push_back(stage.plan.layers);
        w.rank = static_cast<int>(rank);
        w.ranks = static_cast<int>(stage.ranks.size());
        w.weight_bytes += slot.facts.weight_bytes;
        w.kv_bytes += slot.facts.kv_bytes;
      }
    }
  }
  for (const auto& [id, lane] : lanes_) {
    LaneStatus& l = status.lanes.emplace_back();
    l.id = id;
    for (size_t hop = 0; hop < lane.hops.size(); ++hop) {
      l.workers.push_back(workers_.at(lane.workers[hop].front()).join.name);
      l.layers.push_back(lane.hops[hop].layers);
    }
    l.role = lane.role;
    l.open = lane.open;
    l.retiring = lane.retiring;
    l.requests = std::ssize(lane.requests);
    l.blocks_total = lane.num_blocks;
    l.blocks_used = lane.scheduler->blocks_in_use();
  }
  return status;
}

sched::SchedulerStats Controller::Stats() const {
  sched::SchedulerStats sum;
  for (const auto& [id, lane] : lanes_) sum += lane.scheduler->Stats();
  sum += closed_lanes_;
  sum.waiting += static_cast<int>(waiting_.size());
  return sum;
}

std::optional<sched::RequestInfo> Controller::Inspect(RequestId id, Time now) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  const Tracked& tracked = found->second;
  if (tracked.lane) return lanes_.at(*tracked.lane).scheduler->Inspect(id, now);
  sched::RequestInfo info;
  info.id = id;
  info.age = now - tracked.arrived;
  info.prompt_tokens = tracked.prompt_tokens();
  info.output_tokens = static_cast<int>(tracked.told);
  info.waits_for = Missing().value_or("a way through the plan");
  return info;
}

std::vector<sched::RequestInfo> Controller::InspectAll(Time now) const {
  std::vector<sched::RequestInfo> all;
  for (const auto& [id, tracked] : requests_) {
    if (auto info = Inspect(id, now)) all.push_back(std::move(*info));
  }
  std::ranges::sort(all, {}, &sched::RequestInfo::id);
  return all;
}

std::optional<sched::RequestInfo> Controller::Stalled(Time now) const {
  for (const auto& [id, lane] : lanes_) {
    if (!lane.open) continue;
    if (auto stalled = lane.scheduler->Stalled(now)) return stalled;
  }
  return std::nullopt;
}

void Controller::CheckIntegrity() const {
  for (const auto& [id, lane] : lanes_) {
    lane.scheduler->CheckIntegrity();
    for (RequestId request : lane.requests) {
      const auto found = requests_.find(request);
      MR_CHECK(found != requests_.end() && found->second.lane == id)
          << "lane " << id << " has request " << request << ", which is not its";
    }
    for (const auto& hop : lane.workers) {
      for (WorkerId worker : hop) {
        MR_CHECK(workers_.contains(worker)) << "lane " << id << " has a lost worker";
      }
    }
  }
  for (const auto& [id, tracked] : requests_) {
    MR_CHECK(tracked.lane.has_value() != tracked.waiting.has_value())
        << "request " << id << " is in a lane and waits, or neither";
    MR_CHECK(tracked.waiting.has_value() == waiting_.contains({tracked.arrived, id}))
        << "request " << id << " is missing in the queue";
    if (!tracked.lane) continue;
    const auto lane = lanes_.find(*tracked.lane);
    MR_CHECK(lane != lanes_.end() && lane->second.requests.contains(id))
        << "request " << id << " is in a lane that does not know it";
  }
  size_t heirs = 0;
  for (const auto& [id, tracked] : requests_) {
    if (!tracked.left) continue;
    ++heirs;
    MR_CHECK(heirs_.contains(tracked.left->lane) && heirs_.at(tracked.left->lane).contains(id))
        << "request " << id << " left KV in a lane that does not know it";
  }
  for (const auto& [lane, of_lane] : heirs_) {
    MR_CHECK(lanes_.contains(lane) || remains_.contains(lane)) << "KV in a lane that is gone";
    heirs -= of_lane.size();
  }
  MR_CHECK(heirs == 0) << "KV is kept for nobody";
  for (const auto& [lane, remains] : remains_) {
    MR_CHECK(heirs_.contains(lane)) << "a lost lane is kept for nobody";
  }
  MR_CHECK(waiting_.size() <= requests_.size()) << "more wait than there are";
  for (const auto& [id, move] : moves_) {
    MR_CHECK(requests_.contains(id)) << "request " << id << " moves and has ended";
    MR_CHECK(lanes_.contains(move.to)) << "request " << id << " moves to a lane that is gone";
  }
  for (const auto& [shard, worker] : shards_) {
    MR_CHECK(workers_.contains(worker)) << "shard " << shard << " is on a lost worker";
  }
  MR_CHECK(connections_.size() == workers_.size()) << "sessions and workers differ";
}

}  // namespace millrace::cluster
