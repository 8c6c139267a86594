// Routed: a plan of unequal stages on the virtual clock. The production router gives every request
// its own route and reserves KV on all its hops. Requests with the same route share a production
// scheduler that has as many steps in flight as the route has hops. A stage runs everything that
// has arrived as one batch, whether it enters at the stage's first layer or later (Helix section 5,
// partial inference), and sends each part to its next hop. Modelled: stage times, links, network
// cards and trunks. One thread; a run is a function of its inputs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cluster/control/router.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "cost/step_cost.h"
#include "sched/scheduler.h"
#include "sim/event_queue.h"
#include "sim/instance.h"
#include "sim/links.h"
#include "sim/load.h"
#include "sim/membership.h"
#include "sim/prompts.h"
#include "sim/recorder.h"
#include "sim/slots.h"
#include "sim/workload.h"

namespace millrace::sim {

// The nodes with a stage, in order; a plan may leave nodes out.
std::vector<NodeIndex> UsedNodes(const Plan& plan);

struct RoutedStageOptions {
  const cost::StepCost* per_layer = nullptr;  // of one layer; not owned
  int64_t kv_token_layers = 0;                // that fit beside the weights
  double overhead_s = 0;                      // per batch
  // Additional cost of the tokens whose last layer is here: the vocabulary projection. Null: none.
  const cost::StepCost* head = nullptr;
};

struct RoutedOptions {
  Plan plan;
  ClusterSpec cluster;
  std::vector<RoutedStageOptions> stages;  // in the plan's order
  double activation_bytes_per_token = 0;   // between stages
  double token_bytes = 4;                  // to and from the coordinator
  int stage_batch_tokens_max = 8192;       // waiting tokens that a stage takes at once
  sched::SchedulerOptions scheduler;       // of every pipeline; the plan sets memory and stages
  cluster::RouterOptions router;
  Slo slo;
  Time measure_from;            // earlier events are not reported
  std::optional<Time> stop_at;  // later events do not happen
  // Ordered by time; an instance is a node of the cluster. Empty: all nodes are always present. A
  // stage whose node leaves takes no requests after the notice. Requests in it when it is lost are
  // recomputed on another route, from its first layer on.
  std::vector<MembershipChange> membership;
};

struct RoutedReport {
  LatencyReport latency;
  double measured_s = 0;                 // from measure_from to the end
  std::vector<double> stage_busy_share;  // of the whole run
  std::vector<double> stage_kv_share;    // reserved at the end
  std::vector<LinkUse> links;
  std::vector<LoadSample> load;  // evenly over arrivals
  double simulated_s = 0;
  size_t pipelines = 0;  // number of different routes used
  uint64_t steps = 0, batches = 0, events = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // of all pipelines
  std::optional<MembershipReport> membership;
  std::vector<double> node_paid_s;  // with membership, by node of the cluster
};

class Routed {
 public:
  // kInvalidArgument, with the stage or link, if the plan does not fit the cluster.
  static Result<std::unique_ptr<Routed>> Create(RoutedOptions options);
  // Runs the workload to its end (or to stop_at). Call once.
  RoutedReport Run(Workload& workload);

  // Called now and then with the number of arrived requests.
  std::function<void(uint64_t arrived, Time now)> on_progress;
  // Called at the start of every batch of a stage: one begin, one end.
  std::function<void(int stage, const StepRecord&)> on_batch;

 private:
  // The requests on one route.
  struct Pipeline {
    Route route;
    std::unique_ptr<sched::Scheduler> scheduler;
    bool lost = false;  // one of its stages is lost; its steps in flight do not end
  };
  // A step in flight.
  struct Part {
    std::shared_ptr<Pipeline> pipeline;
    size_t hop = 0;
    cost::BatchShape shape;
    StepResult result;
  };
  struct Stage {
    std::deque<int> waiting;   // parts
    std::vector<int> running;  // parts
    Duration busy;
    Time end;           // end of the running batch
    uint16_t life = 0;  // of its node: steps that ran before a loss do not end
  };
  enum class What : uint8_t { kArrival, kPartArrival, kStageEnd, kStepEnd };
  struct Event {
    What what = What::kArrival;
    uint16_t life = 0;  // of a stage
    int32_t index = 0;  // of a part or a stage
  };

  Routed(RoutedOptions options, cluster::Router router, Links links);
  void Handle(const Event& event, Time now);
  void Arrive(const SimRequest& request);
  void FollowDecisions(Time now);
  const std::shared_ptr<Pipeline>& PipelineOf(const Route& route);
  void Submit(const std::shared_ptr<Pipeline>& pipeline, Time now);
  void Free(int part);
  void Send(int part, Time now);  // to its hop, or back after the last
  void StartStage(int stage, Time now);
  double StageSeconds(int stage) const;
  void EndStage(int stage, Time now);
  void EndStep(int part, Time now);
  int NodeOf(int stage) const { return options_.plan.stages[stage].nodes.front(); }
  // routed_membership.cc
  void BeginMembership();
  std::optional<Time> NextChange() const;
  void Change(Time now);
  void SetStages(int node, bool up, Time now);
  void Lose(int node, Time now);
  void LoseStage(int stage, Time now);
  RoutedReport Report(Time now) const;

  const RoutedOptions options_;
  cluster::Router router_;
  Links links_;
  EventQueue<Event> events_;
  Recorder recorder_;
  Prompts prompts_;
  LoadSampler load_;
  std::map<std::vector<int>, std::shared_ptr<Pipeline>> pipelines_;
  std::vector<Stage> stages_;
  Slots<Part> parts_;
  std::vector<RequestOutput> outputs_;
  StepRecord record_;
  uint64_t steps_ = 0, batches_ = 0, events_done_ = 0, arrived_ = 0;
  Availability availability_;  // of the nodes
  size_t next_change_ = 0;
  std::unordered_map<RequestId, sched::NewRequest> begun_;  // on a pipeline that was lost
  MembershipReport moves_;                                  // requests only
  sched::SchedulerStats lost_;                              // of lost pipelines
};

}  // namespace millrace::sim
