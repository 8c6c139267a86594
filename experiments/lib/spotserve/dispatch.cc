// Assigns requests to pipelines and takes them back.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "experiments/lib/spotserve/simulator.h"

namespace millrace::experiments::spotserve {
namespace {

// kMillrace: a batch is started before a cut only if it completes at least this many steps.
constexpr int kWorthwhileSteps = 4;

}  // namespace

void Simulator::Wake(int64_t id) {
  Serving& serving = pipelines_.at(id);
  const auto next = serving.engine->NextEvent();
  if (next == serving.wakes_s) return;
  serving.wakes_s = next;
  if (next.has_value()) Push(*next, EventKind::kPipeline, id);
}

void Simulator::AdvancePipeline(int64_t id) {
  const auto it = pipelines_.find(id);
  if (it == pipelines_.end()) return;
  Serving& serving = it->second;
  if (!serving.wakes_s.has_value() || *serving.wakes_s > now_s_ + 1e-8) return;
  serving.wakes_s.reset();
  const std::vector<Stopped> stopped = serving.engine->Advance(now_s_);
  if (!stopped.empty()) {
    serving.stopped = true;
    Settle(serving, stopped);
    if (options_.system == System::kRerouting) {
      DropStopped();
    } else {
      CheckAllStopped();
    }
    return;
  }
  Wake(id);
}

// Requests of a stopped pipeline: with KV they wait for the move, otherwise for their turn.
void Simulator::Settle(Serving& serving, const std::vector<Stopped>& stopped) {
  const bool moves = options_.system == System::kSpotServe || options_.system == System::kMillrace;
  std::vector<int> lost;
  for (const Stopped& s : stopped) {
    if (moves && s.has_kv) {
      change_.batches[serving.data].push_back(s.request);
    } else {
      lost.push_back(s.request);
    }
  }
  Return(lost);
}

void Simulator::Return(const std::vector<int>& requests) {
  for (const int r : requests) {
    if (!KeepsProgress()) {
      report_.lost_steps += requests_[r].done;
      requests_[r].done = 0;
    }
    queue_.insert(r);
  }
}

void Simulator::Kill(int64_t id) {
  const auto it = pipelines_.find(id);
  if (it == pipelines_.end()) return;
  std::vector<int> lost;
  for (const Stopped& s : it->second.engine->Cut(now_s_)) lost.push_back(s.request);
  Return(lost);
  // A batch that stopped to be moved is lost with the machines that held its KV.
  if (const auto batch = change_.batches.find(it->second.data);
      phase_ == Phase::kStopping && batch != change_.batches.end()) {
    Return(batch->second);
    change_.batches.erase(batch);
  }
  pipelines_.erase(it);
}

int Simulator::StepsAllowed(const Serving& serving, int batch) const {
  if (!serving.closing) return lengths_.output_tokens;
  if (serving.stopped) return 0;
  const auto time = BatchTime(model_.profile, *config_, batch);
  if (options_.system == System::kMillrace) {
    const double first_s = (time.prefill_ms + kWorthwhileSteps * time.step_ms) / 1000;
    return now_s_ + first_s <= change_.stop_s ? lengths_.output_tokens : 0;
  }
  return PublishedSteps({.grace_s = cloud_.grace_s,
                         .migration_s = serving.estimate_s,
                         .preemption = serving.preemption},
                        now_s_ - serving.notice_s, BatchTime(model_.profile, *config_, 1), time,
                        lengths_.output_tokens);
}

bool Simulator::FillPipeline(int64_t id, Serving& serving) {
  const size_t slots = std::max(0, serving.engine->FreeSlots());
  size_t n = std::min(queue_.size(), slots);
  if (n == 0) return false;
  // A power of two, as in the released dispatcher. Continuous batching admits one at a time, so
  // that the pipelines share evenly.
  n = options_.batching == Batching::kContinuous ? 1 : std::bit_floor(n);
  const int steps = StepsAllowed(serving, static_cast<int>(n));
  if (steps == 0) {
    if (options_.system != System::kMillrace && serving.engine->running() == 0) {
      serving.stopped = true;
    }
    return false;
  }
  std::vector<int> batch;
  for (size_t i = 0; i < n; ++i) {
    batch.push_back(*queue_.begin());
    report_.replayed_tokens += requests_[batch.back()].done;
    queue_.erase(queue_.begin());
  }
  serving.engine->Start(now_s_, batch, false, steps);
  serving.limited = steps < lengths_.output_tokens;
  Wake(id);
  return true;
}

void Simulator::Dispatch() {
  while (!queue_.empty()) {
    // The emptiest pipeline first. For batches that run to completion: any idle one, in order.
    std::vector<std::pair<int, int64_t>> order;
    for (const auto& [id, serving] : pipelines_) {
      if (serving.engine->FreeSlots() > 0 && !serving.stopped) {
        order.push_back({-serving.engine->FreeSlots(), id});
      }
    }
    std::sort(order.begin(), order.end());
    bool filled = false;
    for (const auto& [slots, id] : order) {
      filled = FillPipeline(id, pipelines_.at(id));
      if (filled) break;
    }
    if (!filled) break;
  }
  if (options_.system == System::kRerouting) {
    DropStopped();
  } else {
    CheckAllStopped();
  }
}

}  // namespace millrace::experiments::spotserve
