// Service: several instances behind a dispatcher, fed by a workload, on one virtual clock. The main
// part of the simulator around the production scheduler. One thread; a run is a function of its
// inputs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cluster/control/dispatch.h"
#include "sim/event_queue.h"
#include "sim/instance.h"
#include "sim/load.h"
#include "sim/membership.h"
#include "sim/prompts.h"
#include "sim/recorder.h"
#include "sim/slots.h"
#include "sim/workload.h"

namespace millrace::sim {

// How KV gets from a prefill instance to a decode instance: pulled over the sender's network card,
// one request after another, while its blocks are held.
struct KvTransferOptions {
  double kv_bytes_per_token = 0;
  double bytes_per_s = 25e9;  // from one prefill instance
  double latency_s = 0;
  Duration lease = Duration::Seconds(3600);  // how long it is held; then it is recomputed
};

// What a service does with the requests of an instance that will leave soon. Finish: nothing;
// requests that have not ended by then are recomputed elsewhere. Move: their KV is copied while
// they run, one after another over the instance's card, and then they continue elsewhere (SpotServe
// section 4.2).
enum class OnNotice { kFinish, kMove };

struct ServiceOptions {
  // Either all with role kBoth, or some with kPrefill and some with kDecode.
  std::vector<InstanceOptions> instances;
  KvTransferOptions kv_transfer;
  Duration front_end;  // from arrival to the scheduler, and from output to the client
  cluster::DispatchPolicy dispatch = cluster::DispatchPolicy::kFewestRequests;  // ties: in turn
  Slo slo;
  std::optional<Time> stop_at;  // later events do not happen
  uint64_t seed = 0;            // of random dispatch
  // Ordered by time; empty: all instances are always present. Roles must be kBoth.
  std::vector<MembershipChange> membership;
  OnNotice on_notice = OnNotice::kMove;
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
  // Of hand-overs: from the first token to the start of the pull, and the pull itself.
  Quantiles kv_wait, kv_transfer;
  std::vector<double> kv_link_busy_share;      // per instance, sending
  std::optional<MembershipReport> membership;  // with ServiceOptions::membership
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
  enum class What : uint8_t { kArrival, kStepEnd, kKvArrival, kCopied };
  struct Event {
    What what = What::kArrival;
    uint16_t life = 0;  // of the instance: events of its earlier machine are void
    int32_t index = 0;  // of an instance, a pull, or a copy
  };
  // A KV transfer between two instances.
  struct Pull {
    RequestId id;
    int from = 0, to = 0;
    bool complete = false;
    uint16_t from_life = 0, to_life = 0;
  };
  struct Handed {
    int from = 0;
    Time at;
    int copied_tokens = 0;  // before the hand-over
  };
  // KV that is copied while its request runs.
  struct Copy {
    RequestId id;
    int from = 0;
    int tokens = 0;
  };
  static bool HasPrefixCache(const ServiceOptions& options);
  explicit Service(const ServiceOptions& options)
      : options_(options),
        dispatcher_({.policy = options.dispatch,
                     .ties = cluster::DispatchTies::kInTurn,
                     .seed = options.seed}),
        recorder_(options.slo),
        prompts_(HasPrefixCache(options)),
        availability_(static_cast<int>(options.instances.size())),
        copied_(options.instances.size()) {}
  void Arrive(const SimRequest& request, Time now);
  // The instance with the role that should take the next request.
  int Dispatch(const std::vector<int>& among);
  // Gives it to the instance; false if the request was rejected.
  bool Give(int index, sched::NewRequest request, Time now);
  void HearAll(int index, Time now);  // outputs_
  void Hear(int index, RequestOutput& output, Time now);
  std::shared_ptr<const SamplingParams> SharedParams(int output_tokens);
  void Submit(int index, Time now);
  // service_handoff.cc
  Status SortRoles();
  void HandOver(RequestId id, int from, TokenId first_token, Time now);
  void StartPulls(int index, Time now);
  void EndPull(int slot, Time now);
  // service_membership.cc
  Status BeginMembership();
  std::optional<Time> NextChange() const;
  void Change(Time now);
  void CountEntries();  // after a change of the instances that take requests
  void Leave(int index, Time now);
  void EndCopy(int slot, uint16_t life, Time now);
  void MoveCopied(int index, Time now);
  bool TryMove(const Copy& copy, Time now);
  void Lose(int index, Time now);
  void Park(sched::NewRequest request);
  void Place(sched::NewRequest request, Time now);  // in an instance that takes requests
  void DropHandedKv(RequestId id);                  // wherever it is held; it will not be fetched
  void TakeOut(RequestId id, int from);             // it is no longer there

  Duration PrefillTime(int index, int prompt_tokens) const;
  ServiceReport Report(Time now);

  const ServiceOptions options_;
  std::vector<std::unique_ptr<Instance>> instances_;
  EventQueue<Event> events_;
  std::vector<int> entries_, decodes_;  // instances that take new requests; that take hand-overs
  cluster::Dispatcher dispatcher_;
  std::vector<cluster::DispatchLoad> loads_;  // scratch
  Recorder recorder_;
  Prompts prompts_;
  StepResult result_;  // scratch
  std::vector<RequestOutput> outputs_;
  std::vector<Time> ends_;
  std::vector<std::shared_ptr<const SamplingParams>> params_;  // by output length
  std::vector<Duration> prefill_ahead_;  // of kPredictedTime: prefill time ahead on each instance
  std::unordered_map<RequestId, Handed> handed_;  // waiting for their pull
  Slots<Pull> pulls_;
  std::vector<Time> link_free_;      // per instance: its network card
  std::vector<Duration> link_busy_;  // the same
  Availability availability_;
  size_t next_change_ = 0;
  std::deque<sched::NewRequest> parked_;   // while no instance takes requests
  MembershipReport moves_;                 // requests only
  std::vector<std::vector<Copy>> copied_;  // per instance: they leave when no step holds them
  Slots<Copy> copies_;
  Quantiles kv_wait_, kv_transfer_;
  LoadSampler load_;
  uint64_t arrived_ = 0, events_done_ = 0;
};

}  // namespace millrace::sim
