// A change of configuration, from the decision to the first token after it.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "experiments/lib/spotserve/simulator.h"

namespace millrace::experiments::spotserve {

using plan::spot::ParallelConfig;

namespace {

constexpr double kForecastUntil_s = 60;  // kMillrace: afterwards only the measured load counts
constexpr double kUsualChange_s = 10;    // kMillrace: the price of a change before the first plan
constexpr double kBaselineEstimate_s = 0.5;  // time that the baselines reserve

}  // namespace

std::optional<ParallelConfig> Simulator::Choose(int devices) {
  if (options_.system != System::kMillrace) {
    auto best = OptimizeAsPublished(model_.profile, model_.space, devices, required_per_s_);
    if (!best.has_value()) return std::nullopt;
    // The released scheduler always serves with the largest batch, whatever the optimizer says.
    best->config.batch = model_.space.batch_max;
    return best->config;
  }
  const Time now{std::llround(now_s_ * 1e9)};
  double load = meter_.RequestsPerSecond(now, queue_.size());
  if (now_s_ < kForecastUntil_s) load = std::max(load, required_per_s_);
  controller_.ExpectVariation(meter_.Variation());
  const double price_s = change_.number > 0 ? change_.estimate_s : kUsualChange_s;
  const auto decision = controller_.Decide(now, devices, load, price_s);
  if (!decision.candidate.has_value()) return std::nullopt;
  return decision.candidate->config;
}

bool Simulator::Needed(const ParallelConfig& target) const {
  if (config_ != target || static_cast<int>(pipelines_.size()) < target.data) return true;
  for (const auto& [id, serving] : pipelines_) {
    for (const int node : serving.nodes) {
      if (!fleet_.node(node).stays()) return true;
    }
  }
  return false;
}

void Simulator::Reconsider() {
  if (phase_ != Phase::kSteady) {
    dirty_ = true;
    return;
  }
  const int devices = static_cast<int>(fleet_.Staying().size()) * cloud_.devices_per_instance;
  // With too few machines for one pipeline, the running ones continue while they can.
  const auto target = Choose(devices);
  if (target.has_value() && Needed(*target)) BeginChange(*target);
}

void Simulator::Close(Serving& serving, double estimate_s, bool preemption) {
  serving.closing = true;
  serving.stopped = false;
  serving.notice_s = now_s_;
  serving.estimate_s = estimate_s;
  serving.preemption = preemption;
}

void Simulator::BeginChange(const ParallelConfig& target) {
  change_ = {.number = change_.number + 1, .target = target, .deadline_s = INFINITY};
  phase_ = Phase::kStopping;
  change_.await_s = now_s_;
  for (const int node : fleet_.Staying()) {
    change_.await_s = std::max(change_.await_s, fleet_.node(node).ready_s);
  }
  std::map<int, std::vector<int>> running;
  for (const auto& [id, serving] : pipelines_) {
    running[serving.data].resize(std::max(1, serving.engine->running()), -1);
    for (const int node : serving.nodes) {
      const auto& leaves_s = fleet_.node(node).leaves_s;
      if (leaves_s.has_value()) change_.deadline_s = std::min(change_.deadline_s, *leaves_s);
    }
  }
  // Without new machines to wait for, stopping is arranged as before a loss.
  change_.preemption = std::isfinite(change_.deadline_s) || change_.await_s <= now_s_;
  change_.estimate_s = kBaselineEstimate_s;
  if (options_.system != System::kReparallelization) {
    const Moving moving = MapChange(target, running);
    change_.estimate_s = moving.migration.seconds + StorageSeconds(moving);
    change_.kept = Untouched(moving);
    change_.only_adds = change_.kept.size() == pipelines_.size() && !pipelines_.empty() &&
                        target.data >= static_cast<int>(pipelines_.size());
    if (options_.system == System::kSpotServe && !change_.only_adds) change_.kept.clear();
    const double begin_s = std::max(now_s_, change_.await_s);
    change_.copied_s = begin_s + Seconds(moving, false, false, true) + cloud_.engine_start_s;
    change_.stop_s = change_.copied_s;
    if (std::isfinite(change_.deadline_s)) {
      change_.stop_s = change_.deadline_s - Seconds(moving, true, true, false) - options_.margin_s;
    }
  }
  if (std::isfinite(change_.deadline_s)) {
    change_.estimate_s += std::max(0.0, cloud_.grace_s - (change_.deadline_s - now_s_));
  }
  for (auto& [id, serving] : pipelines_) {
    if (!change_.kept.contains(id)) Close(serving, change_.estimate_s, change_.preemption);
  }
  PlanStop();
}

void Simulator::PlanStop() {
  if (pipelines_.empty()) {
    Move();
    return;
  }
  if (options_.system == System::kMillrace) {
    Push(change_.stop_s, EventKind::kStop, change_.number);
    return;
  }
  if (change_.only_adds) {
    Push(change_.await_s, EventKind::kStop, change_.number);
    return;
  }
  // Pipelines with work stop between batches; those without work stop when no batch could start any
  // more.
  const double first_s = BatchTime(model_.profile, *config_, 1).prefill_ms / 1000;
  const double slot_s = change_.preemption ? cloud_.grace_s - change_.estimate_s - first_s * 1.1
                                           : cloud_.grace_s + change_.estimate_s - first_s / 1.1;
  Push(now_s_ + slot_s + 1e-6, EventKind::kStop, change_.number);
}

void Simulator::CheckAllStopped() {
  if (phase_ != Phase::kStopping || change_.only_adds || options_.system == System::kMillrace) {
    return;
  }
  for (const auto& [id, serving] : pipelines_) {
    if (serving.closing && !serving.stopped) return;
  }
  Move();
}

void Simulator::StopNow() {
  if (options_.system == System::kMillrace || change_.only_adds) {
    for (auto& [id, serving] : pipelines_) {
      if (!serving.closing) continue;
      Settle(serving, serving.engine->Cut(now_s_));
      serving.stopped = true;
    }
    Move();
    return;
  }
  for (auto& [id, serving] : pipelines_) {
    if (serving.closing && serving.engine->running() == 0 && StepsAllowed(serving, 1) == 0) {
      serving.stopped = true;
    }
  }
  CheckAllStopped();
}

// Only possible while nothing has stopped or must stop.
bool Simulator::AbandonChange() {
  for (const auto& [id, serving] : pipelines_) {
    if (serving.closing && (serving.stopped || serving.limited)) return false;
  }
  for (auto& [id, serving] : pipelines_) serving.closing = false;
  phase_ = Phase::kSteady;
  return true;
}

void Simulator::Serve(int data, std::vector<int> nodes) {
  const int64_t id = next_id_++;
  Serving& serving = pipelines_[id];
  serving.data = data;
  serving.nodes = std::move(nodes);
  serving.engine = MakeEngine();
  const auto batch = change_.inherits.find(data);
  if (batch == change_.inherits.end()) return;
  // If the batch limit is smaller than before, the other requests wait for their turn.
  std::vector<int> requests = std::move(batch->second);
  change_.inherits.erase(batch);
  const size_t slots = serving.engine->FreeSlots();
  if (requests.size() > slots) {
    Return({requests.begin() + static_cast<int64_t>(slots), requests.end()});
    requests.resize(slots);
  }
  serving.engine->Start(now_s_, requests, true, lengths_.output_tokens);
  Wake(id);
}

void Simulator::Ready() {
  fleet_.Charge(std::min(now_s_, trace_.end_s), InstancesNeeded());
  config_ = change_.target;
  phase_ = Phase::kSteady;
  ++report_.reconfigurations;
  std::erase_if(pipelines_, [&](const auto& p) { return !change_.kept.contains(p.first); });
  for (auto& [id, serving] : pipelines_) {
    serving.data = change_.kept.at(id);
    serving.closing = false;
    // kMillrace changes the batch limit of a running pipeline; the released engine restarts for it.
    if (options_.system == System::kMillrace) serving.engine->Limit(*config_);
  }
  std::map<int, std::vector<int>> nodes_of;
  for (size_t i = 0; i < change_.nodes.size(); ++i) {
    Node& node = fleet_.node(change_.nodes[i]);
    for (size_t k = 0; k < node.held.size(); ++k) {
      const auto& place = change_.places[i][k];
      node.held[k].reset();
      if (!place.has_value()) continue;
      auto& nodes = nodes_of[place->data];
      if (nodes.empty() || nodes.back() != change_.nodes[i]) nodes.push_back(change_.nodes[i]);
      if (node.gone) continue;
      node.held[k] = {*place, SliceOf(model_.bytes.layers, *config_, *place)};
    }
  }
  for (auto& [data, nodes] : nodes_of) {
    const bool serves = std::any_of(pipelines_.begin(), pipelines_.end(),
                                    [d = data](const auto& p) { return p.second.data == d; });
    const bool alive =
        std::none_of(nodes.begin(), nodes.end(), [&](int n) { return fleet_.node(n).gone; });
    if (!serves && alive) Serve(data, std::move(nodes));
  }
  // Requests that a pipeline without a start was to inherit.
  for (const auto& [data, requests] : change_.inherits) Return(requests);
  change_.inherits.clear();
  dirty_ = false;
  Reconsider();
}

}  // namespace millrace::experiments::spotserve
