// Service: equal replicas behind a dispatcher, fed by a workload, on one virtual clock. The fast
// path of ClusterSim for instances that do prefill and decode and stay: the production scheduler
// without a controller, messages and workers. A test holds that its times are those of ClusterSim.
// One thread; a run is a function of its inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/control/routing/dispatch.h"
#include "sim/fast/instance.h"
#include "sim/load/request_maker.h"
#include "sim/load/workload.h"
#include "sim/machines/event_queue.h"
#include "sim/machines/membership.h"
#include "sim/record/load.h"
#include "sim/record/recorder.h"

namespace millrace::sim {

struct ServiceOptions {
  std::vector<InstanceOptions> instances;
  Duration front_end;  // from arrival to the scheduler, and from output to the client
  cluster::DispatchPolicy dispatch = cluster::DispatchPolicy::kFewestRequests;  // ties: in turn
  LatencyLimits limits;
  std::optional<Time> stop_at;  // later events do not happen
  uint64_t seed = 0;            // of random dispatch
};

struct ServiceReport {
  LatencyReport latency;
  std::vector<std::vector<double>> busy_share;  // per instance, per stage
  std::vector<sched::SchedulerStats> stats;     // per instance, at the end
  std::vector<InstanceUse> use;                 // per instance
  std::vector<LoadSample> load;                 // evenly over arrivals
  uint64_t steps = 0, events = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // of all instances
  double simulated_s = 0;
  // Of a cluster of instances (sim/cluster/instances.h). From the first token to the start of the
  // pull, and the pulls themselves.
  Quantiles kv_wait, kv_transfer;
  std::vector<double> kv_link_busy_share;      // per instance, sending
  std::optional<MembershipReport> membership;  // if instances come and go
};

class Service {
 public:
  // kInvalidArgument if an instance's options or the roles contradict each other.
  static Result<std::unique_ptr<Service>> Create(const ServiceOptions& options);

  // Runs the workload to its end (or to stop_at). Call once.
  ServiceReport Run(Workload& workload);

  // Called with every step of instance `index` at its submission.
  void OnStep(std::function<void(int index, const StepRecord&)> observe);
  const sched::Scheduler& scheduler(int index) const { return instances_[index]->scheduler(); }
  // Called now and then with the share of arrived requests, if the total is known.
  std::function<void(uint64_t arrived, Time now)> on_progress;

 private:
  enum class What : uint8_t { kArrival, kStepEnd };
  struct Event {
    What what = What::kArrival;
    int32_t index = 0;  // of the instance
  };
  explicit Service(const ServiceOptions& options)
      : options_(options),
        dispatcher_({.policy = options.dispatch,
                     .ties = cluster::DispatchTies::kInTurn,
                     .seed = options.seed}),
        recorder_(options.limits),
        requests_(HasPrefixCache(options)) {}
  static bool HasPrefixCache(const ServiceOptions& options);
  void Arrive(const SimRequest& request, Time now);
  int Dispatch();                        // the instance that takes the next request
  void DeliverAll(int index, Time now);  // outputs_
  void Hear(int index, RequestOutput& output, Time now);
  void Submit(int index, Time now);
  Duration PrefillTime(int index, int prompt_tokens) const;
  ServiceReport Report(Time now);

  const ServiceOptions options_;
  std::vector<std::unique_ptr<Instance>> instances_;
  EventQueue<Event> events_;
  cluster::Dispatcher dispatcher_;
  std::vector<cluster::DispatchLoad> loads_;  // scratch
  Recorder recorder_;
  StepResult result_;  // scratch
  std::vector<RequestOutput> outputs_;
  std::vector<Time> ends_;
  RequestMaker requests_;
  std::vector<Duration> prefill_ahead_;  // of kPredictedTime: prefill time ahead on each instance
  LoadSampler load_;
  uint64_t arrived_ = 0, events_done_ = 0;
};

}  // namespace millrace::sim
