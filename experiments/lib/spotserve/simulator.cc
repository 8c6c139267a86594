#include "experiments/lib/spotserve/simulator.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::experiments::spotserve {

std::string_view SystemName(System system) {
  switch (system) {
    case System::kSpotServe: return "SpotServe";
    case System::kReparallelization: return "Reparallelization";
    case System::kRerouting: return "Rerouting";
    case System::kMillrace: return "Millrace";
  }
  return "";
}

Simulator::Simulator(const SpotModel& model, const SpotCloud& cloud,
                     const sim::AvailabilityTrace& trace, std::span<const double> arrivals_s,
                     const SpotOptions& options)
    : model_(model),
      cloud_(cloud),
      trace_(trace),
      options_(options),
      lengths_{model.input_tokens, model.space.output_tokens},
      fleet_(trace, cloud),
      required_per_s_(options.required_per_s),
      controller_(model.profile, model.space, options.controller) {
  for (const double at_s : arrivals_s) requests_.push_back({.arrival_s = at_s});
}

void Simulator::Push(double at_s, EventKind kind, int64_t a) {
  events_.Push(Time{std::llround(std::max(at_s, now_s_) * 1e9)}, {kind, a});
}

Result<SpotReport> Simulator::Run() {
  if (options_.system == System::kRerouting) ChooseForRerouting();
  for (size_t i = 0; i < trace_.events.size(); ++i) {
    const double at_s = trace_.events[i].at_s;
    Push(at_s - cloud_.grace_s, EventKind::kNotice, static_cast<int64_t>(i));
    Push(at_s, EventKind::kEffect, static_cast<int64_t>(i));
  }
  if (!requests_.empty()) Push(requests_[0].arrival_s, EventKind::kArrival, 0);
  if (options_.system == System::kMillrace) Push(options_.tick_s, EventKind::kTick, 0);
  while (!events_.empty()) {
    const double next_s = events_.next_time().ns * 1e-9;
    if (next_s > trace_.end_s + options_.drain_limit_s) break;
    if (next_s > trace_.end_s && AllDone()) break;
    now_s_ = next_s;
    Handle(events_.Pop());
  }
  return Report();
}

void Simulator::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kArrival:
      queue_.insert(static_cast<int>(event.a));
      meter_.Arrive(Time{std::llround(now_s_ * 1e9)});
      if (const size_t next = event.a + 1; next < requests_.size()) {
        Push(requests_[next].arrival_s, EventKind::kArrival, event.a + 1);
      }
      break;
    case EventKind::kPipeline: AdvancePipeline(event.a); break;
    case EventKind::kNotice: Notice(trace_.events[event.a]); break;
    case EventKind::kEffect: Effect(trace_.events[event.a]); break;
    case EventKind::kStop:
      if (options_.system == System::kRerouting) {
        DropStopped();
      } else if (phase_ == Phase::kStopping && event.a == change_.number) {
        StopNow();
      }
      break;
    case EventKind::kReady:
      if (options_.system == System::kRerouting) {
        ReadyRerouting(event.a);
      } else if (phase_ == Phase::kMoving && event.a == change_.number) {
        Ready();
      }
      break;
    case EventKind::kTick:
      if (phase_ == Phase::kSteady) Reconsider();
      Push(now_s_ + options_.tick_s, EventKind::kTick, 0);
      break;
  }
  Dispatch();
}

void Simulator::Notice(const sim::AvailabilityEvent& event) {
  for (const int i : event.nodes) {
    Node& node = fleet_.node(i);
    if (event.kind == sim::AvailabilityKind::kAdd) {
      node.announced = true;
      node.ready_s = event.at_s;
    } else {
      node.leaves_s = event.at_s;
    }
  }
  if (event.requests_per_s.has_value()) required_per_s_ = *event.requests_per_s;
  if (options_.system == System::kRerouting) {
    ConsiderRerouting();
    return;
  }
  // A loss is never delayed for an arrival.
  const bool urgent = event.kind == sim::AvailabilityKind::kRemove && phase_ == Phase::kStopping &&
                      !change_.preemption;
  if (urgent && AbandonChange()) dirty_ = false;
  Reconsider();
}

void Simulator::Effect(const sim::AvailabilityEvent& event) {
  fleet_.Charge(std::min(now_s_, trace_.end_s), InstancesNeeded());
  if (event.kind == sim::AvailabilityKind::kRemove) {
    std::vector<int64_t> killed;
    for (const int i : event.nodes) {
      Node& node = fleet_.node(i);
      node.gone = true;
      std::fill(node.held.begin(), node.held.end(), std::nullopt);
      for (const auto& [id, serving] : pipelines_) {
        if (std::count(serving.nodes.begin(), serving.nodes.end(), i) != 0) killed.push_back(id);
      }
    }
    for (const int64_t id : killed) Kill(id);
    if (!killed.empty() && phase_ == Phase::kStopping) CheckAllStopped();
    if (!killed.empty() && options_.system != System::kRerouting) Reconsider();
  }
  if (options_.system == System::kRerouting) FillRerouting();
}

std::unique_ptr<Pipeline> Simulator::MakeEngine() const {
  const auto make =
      options_.batching == Batching::kContinuous ? MakeContinuousPipeline : MakeBatchPipeline;
  // Requests outlive every pipeline and never move in memory: the vector is filled once.
  return make(model_.profile, *config_, lengths_,
              const_cast<std::vector<RequestState>&>(requests_));
}

int Simulator::InstancesNeeded() const {
  if (!config_.has_value()) return 0;
  if (options_.system != System::kRerouting) {
    return Instances(*config_, cloud_.devices_per_instance);
  }
  size_t nodes = 0;
  for (const auto& [id, serving] : pipelines_) nodes += serving.nodes.size();
  for (const auto& [id, serving] : loading_) nodes += serving.nodes.size();
  return static_cast<int>(nodes);
}

bool Simulator::AllDone() const {
  if (!queue_.empty() || !change_.batches.empty() || !change_.inherits.empty()) return false;
  if (!requests_.empty() && now_s_ < requests_.back().arrival_s) return false;
  return std::all_of(pipelines_.begin(), pipelines_.end(),
                     [](const auto& p) { return p.second.engine->running() == 0; });
}

SpotReport Simulator::Report() {
  fleet_.Charge(trace_.end_s, InstancesNeeded());
  report_.requests = requests_.size();
  for (const RequestState& r : requests_) {
    if (r.finish_s.has_value()) report_.latency_s.push_back(*r.finish_s - r.arrival_s);
  }
  report_.finished = report_.latency_s.size();
  report_.tokens =
      static_cast<int64_t>(report_.finished) * (lengths_.input_tokens + lengths_.output_tokens);
  std::vector<double> sorted = report_.latency_s;
  std::sort(sorted.begin(), sorted.end());
  for (const double s : sorted) report_.mean_s += s / static_cast<double>(sorted.size());
  // Like the released scripts: the element at n * p / 100.
  const auto at = [&](size_t percent) {
    return sorted.empty() ? 0 : sorted[sorted.size() * percent / 100];
  };
  report_.p50_s = at(50);
  report_.p99_s = at(99);
  report_.spot_hours = fleet_.spot_s() / 3600;
  report_.on_demand_hours = fleet_.on_demand_s() / 3600;
  report_.usd = report_.spot_hours * cloud_.spot_usd_per_hour +
                report_.on_demand_hours * cloud_.on_demand_usd_per_hour;
  if (report_.tokens > 0) report_.usd_per_token = report_.usd / static_cast<double>(report_.tokens);
  report_.held_usd = fleet_.held_usd();
  return std::move(report_);
}

Result<SpotReport> SimulateSpot(const SpotModel& model, const SpotCloud& cloud,
                                const sim::AvailabilityTrace& trace,
                                std::span<const double> arrivals_s, const SpotOptions& options) {
  if (!std::is_sorted(arrivals_s.begin(), arrivals_s.end())) {
    return InvalidArgument("arrivals must be in ascending order");
  }
  const int devices = trace.most_alive * cloud.devices_per_instance;
  if (!OptimizeAsPublished(model.profile, model.space, devices, 1).has_value()) {
    return InvalidArgument("the model needs " + std::to_string(model.space.devices_min) +
                           " devices, the trace never has more than " + std::to_string(devices));
  }
  return Simulator(model, cloud, trace, arrivals_s, options).Run();
}

}  // namespace millrace::experiments::spotserve
