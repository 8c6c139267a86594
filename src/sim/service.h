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

// Fewest requests: waiting or running. Predicted time: the least prefill time before the request's
// own, as the cost model has it (DistServe section 4.3), then the fewest requests.
enum class DispatchPolicy { kRoundRobin, kFewestRequests, kRandom, kPredictedTime };

struct ServiceOptions {
  std::vector<InstanceOptions> instances;
  DispatchPolicy dispatch = DispatchPolicy::kFewestRequests;
  Slo slo;
  std::optional<Time> stop_at;  // events after this do not happen
  uint64_t seed = 0;            // of kRandom
};

// How many requests were there when one arrived.
struct LoadSample {
  Time at;
  uint64_t arrived = 0;
  int64_t alive = 0, waiting = 0;  // waiting: without a token yet
};

struct ServiceReport {
  LatencyReport latency;
  std::vector<std::vector<double>> busy_share;  // per instance, per stage
  std::vector<sched::SchedulerStats> stats;     // per instance, at the end
  std::vector<InstanceUse> use;                 // per instance
  std::vector<LoadSample> load;                 // at most kLoadSamplesMax, evenly over arrivals
  uint64_t steps = 0, events = 0;
  double simulated_s = 0;
};

class Service {
 public:
  // kInvalidArgument when an instance's options contradict each other.
  static Result<std::unique_ptr<Service>> Create(const ServiceOptions& options);
  static constexpr size_t kLoadSamplesMax = 512;

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
  std::shared_ptr<const std::vector<TokenId>> PromptOf(int tokens);
  Duration PrefillTime(int index, int prompt_tokens) const;
  void SampleLoad(Time now);
  ServiceReport Report(Time now);

  const ServiceOptions options_;
  std::vector<std::unique_ptr<Instance>> instances_;
  EventQueue<int32_t> events_;
  Recorder recorder_;
  std::vector<RequestOutput> outputs_;
  std::vector<Time> ends_;
  std::vector<std::shared_ptr<const SamplingParams>> params_;         // by output length
  std::vector<std::shared_ptr<const std::vector<TokenId>>> prompts_;  // by prompt length
  std::vector<Duration> prefill_ahead_;  // of kPredictedTime: what each instance has before it
  std::vector<LoadSample> load_;
  uint64_t load_every_ = 1;
  uint64_t dispatched_ = 0, arrived_ = 0, events_done_ = 0;
};

}  // namespace millrace::sim
