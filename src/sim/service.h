// Service: several instances behind a dispatcher, fed by a workload, on one virtual clock. The
// simulator's body around the production scheduler. One thread; a run is a function of its inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/event_queue.h"
#include "sim/instance.h"
#include "sim/recorder.h"
#include "sim/workload.h"

namespace millrace::sim {

enum class DispatchPolicy { kRoundRobin, kFewestRequests, kRandom };

struct ServiceOptions {
  std::vector<InstanceOptions> instances;
  DispatchPolicy dispatch = DispatchPolicy::kFewestRequests;
  Slo slo;
  std::optional<Time> stop_at;  // events after this do not happen
  uint64_t seed = 0;            // of kRandom
};

struct ServiceReport {
  LatencyReport latency;
  std::vector<std::vector<double>> busy_share;  // per instance, per stage
  std::vector<sched::SchedulerStats> stats;     // per instance, at the end
  uint64_t steps = 0, events = 0;
  double simulated_s = 0;
};

class Service {
 public:
  // kInvalidArgument when an instance's options contradict each other.
  static Result<std::unique_ptr<Service>> Create(const ServiceOptions& options);

  // Runs the workload to its end (or to stop_at). Call once.
  ServiceReport Run(Workload& workload);

  // Called with every step of instance `index` when it is submitted.
  void OnStep(std::function<void(int index, const StepRecord&)> observe);
  // Called with the share of requests that have arrived, now and then, when the total is known.
  std::function<void(uint64_t arrived, Time now)> on_progress;

 private:
  // An instance's oldest step ended, or (kArrival) the next request arrives.
  static constexpr int32_t kArrival = INT32_MAX;

  explicit Service(const ServiceOptions& options) : options_(options), recorder_(options.slo) {}
  void Arrive(const SimRequest& request);
  int Dispatch();
  std::shared_ptr<const SamplingParams> ParamsFor(int output_tokens);
  void Submit(int index, Time now);
  ServiceReport Report(Time now);

  const ServiceOptions options_;
  std::vector<std::unique_ptr<Instance>> instances_;
  EventQueue<int32_t> events_;
  Recorder recorder_;
  std::vector<RequestOutput> outputs_;
  std::vector<Time> ends_;
  std::vector<std::shared_ptr<const SamplingParams>> params_;  // by output length
  uint64_t dispatched_ = 0, arrived_ = 0, events_done_ = 0;
};

}  // namespace millrace::sim
