// The Rerouting baseline: P and M never change. A pipeline that loses a machine is dropped, and
// free machines become new pipelines with weights from storage.
#include <algorithm>

#include "base/check.h"
#include "experiments/lib/spotserve/simulator.h"

namespace millrace::experiments::spotserve {
namespace {

constexpr double kEstimate_s = 0.5;  // time that a dropped pipeline reserves

}  // namespace

// As released: the best configuration for the most machines that the trace ever has. If its
// pipeline does not fit on the fewest, uses the best for those, where the released script would
// serve nothing.
void Simulator::ChooseForRerouting() {
  for (const int nodes : {trace_.most_alive, trace_.fewest_alive}) {
    const auto best = OptimizeAsPublished(model_.profile, model_.space,
                                          nodes * cloud_.devices_per_instance, required_per_s_);
    if (!best.has_value()) continue;
    config_ = best->config;
    if (best->config.pipeline * best->config.tensor <=
        trace_.fewest_alive * cloud_.devices_per_instance) {
      return;
    }
  }
}

void Simulator::ConsiderRerouting() {
  for (auto& [id, serving] : pipelines_) {
    if (serving.closing) continue;
    const bool loses = std::any_of(serving.nodes.begin(), serving.nodes.end(),
                                   [&](int n) { return !fleet_.node(n).stays(); });
    if (!loses) continue;
    Close(serving, kEstimate_s, true);
    const double first_s = BatchTime(model_.profile, *config_, 1).prefill_ms / 1000;
    Push(now_s_ + cloud_.grace_s - kEstimate_s - first_s * 1.1 + 1e-6, EventKind::kStop, id);
  }
  FillRerouting();
}

void Simulator::DropStopped() {
  bool dropped = false;
  for (auto it = pipelines_.begin(); it != pipelines_.end();) {
    Serving& serving = it->second;
    if (serving.closing && !serving.stopped && serving.engine->running() == 0) {
      serving.stopped = StepsAllowed(serving, 1) == 0;
    }
    dropped = dropped || serving.stopped;
    it = serving.stopped ? pipelines_.erase(it) : std::next(it);
  }
  if (dropped) FillRerouting();
}

void Simulator::FillRerouting() {
  std::vector<int> free;
  for (const int node : fleet_.Staying()) {
    if (fleet_.node(node).ready_s > now_s_ + 1e-9) continue;
    const auto uses = [&](const auto& p) {
      return std::count(p.second.nodes.begin(), p.second.nodes.end(), node) != 0;
    };
    if (std::any_of(pipelines_.begin(), pipelines_.end(), uses)) continue;
    if (std::any_of(loading_.begin(), loading_.end(), uses)) continue;
    free.push_back(node);
  }
  plan::spot::ParallelConfig one = *config_;
  one.data = 1;
  const size_t size = Instances(one, cloud_.devices_per_instance);
  for (size_t first = 0; first + size <= free.size(); first += size) {
    // The machine of the last stage reads the most, because it also reads the head.
    const Slice slice = SliceOf(model_.bytes.layers, one, {0, one.pipeline - 1, one.tensor - 1});
    const int64_t bytes = model_.bytes.WeightBytes(slice) * cloud_.devices_per_instance;
    const double load_s =
        now_s_ > 0 ? bytes / cloud_.storage_bytes_per_s + cloud_.engine_start_s : 0;
    const int64_t id = next_id_++;
    loading_[id].nodes.assign(free.begin() + first, free.begin() + first + size);
    report_.storage_bytes += bytes * static_cast<int64_t>(size);
    report_.pause_s += load_s;
    Push(now_s_ + load_s, EventKind::kReady, id);
  }
}

void Simulator::ReadyRerouting(int64_t id) {
  auto loaded = loading_.extract(id);
  MR_CHECK(!loaded.empty());
  fleet_.Charge(std::min(now_s_, trace_.end_s), InstancesNeeded());
  Serving& serving = loaded.mapped();
  const bool gone = std::any_of(serving.nodes.begin(), serving.nodes.end(),
                                [&](int n) { return fleet_.node(n).gone; });
  if (!gone) {
    serving.engine = MakeEngine();
    pipelines_.insert(std::move(loaded));
    if (now_s_ > 0) ++report_.reconfigurations;
  }
  ConsiderRerouting();
}

}  // namespace millrace::experiments::spotserve
