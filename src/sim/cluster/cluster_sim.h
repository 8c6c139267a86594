// ClusterSim: a cluster on the virtual clock: the production ControllerCore and WorkerCores over
// modelled machines and links, fed by a workload. The controller decides everything that it decides
// in a server: dispatch, routes, hand-over from prefill to decode, moves, membership, recovery. One
// thread; a run is a function of its inputs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cluster/control/controller_core.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "sim/cluster/machine.h"
#include "sim/cluster/report.h"
#include "sim/cluster/wires.h"
#include "sim/cluster/worker.h"
#include "sim/load/request_maker.h"
#include "sim/load/workload.h"
#include "sim/machines/event_queue.h"
#include "sim/machines/links.h"
#include "sim/machines/membership.h"
#include "sim/machines/slots.h"
#include "sim/record/load.h"
#include "sim/record/recorder.h"

namespace millrace::sim {

// What the controller's process adds to a step before it leaves.
struct ControllerOverhead {
  double step_s = 0;
  double sequence_s = 0;    // per sequence of the step
  double arrival_s = 0;     // per new request that joins running ones
  double swap_block_s = 0;  // KV to the host or back, per block
};

// Which workers there are.
enum class SimWorkers : uint8_t {
  // One per stage of the plan, on the stage's nodes: tensor-parallel ranks act as one.
  kByStage,
  // One per node of the cluster, under its name. They may hold any layers, so the plan can change.
  kByNode
};

struct ClusterSimOptions {
  SimWorkers workers = SimWorkers::kByStage;
  // kByNode: the plan at the start. Each stage is on one node, and each node has at most one.
  Plan plan;
  std::vector<const MachineModel*> machines;  // by stage, or by node; not owned
  ClusterSpec cluster;
  std::optional<OtherLinks> other_links;  // between nodes that no link of the cluster names
  InsideNode inside_node;
  double activation_bytes_per_token = 0;
  double token_bytes = 0;  // to and from the controller
  double kv_bytes_per_token_layer = 0;
  // `scheduler`, `router` and `hold_limit` are used; the simulation sets what names the model and
  // the plan, and switches off the limits for machines that hang.
  cluster::ControllerOptions controller;
  ControllerOverhead overhead;
  Duration front_end;  // from arrival to the controller
  LatencyLimits limits;
  Time measure_from;            // earlier events are not reported
  std::optional<Time> stop_at;  // later events do not happen
  // Ordered by time; an instance is a node of the cluster. Empty: all nodes are always present.
  std::vector<MembershipChange> membership;
  OnNotice on_notice = OnNotice::kMove;
  // kByNode: how long a machine loads the layers of a plan that comes after the first.
  Duration change_load_time;
};

// The nodes with a stage, in order; a plan may leave nodes out.
std::vector<NodeIndex> UsedNodes(const Plan& plan);

// Where a worker is: a stage of the plan, or a node.
struct WorkerPlace {
  std::string name;
  std::vector<NodeIndex> nodes;
};

class ClusterSim : private WorkerWorld {
 public:
  // Starts the cluster before time 0. kInvalidArgument, with the stage or link, if the plan does
  // not fit the cluster; kFailedPrecondition if it does not come up.
  static Result<std::unique_ptr<ClusterSim>> Create(ClusterSimOptions options);
  ~ClusterSim() override;

  // Runs the workload to its end (or to stop_at, or until Stop). Call once.
  ClusterReport Run(Workload& workload);
  // Ends Run after the current event. For the callbacks below.
  void Stop() { stopped_ = true; }
  // Changes to another plan; `workers`: the names of its nodes. Returns its epoch. Errors as of
  // ControllerCore::ApplyPlan. REQUIRES: kByNode.
  Result<int64_t> ApplyPlan(Plan plan, std::vector<std::string> workers);

  // Called now and then with the number of arrived requests.
  std::function<void(uint64_t arrived, Time now)> on_progress;
  // Called at the start of every batch of a stage: one begin, one end.
  std::function<void(int stage, const StepRecord&)> on_batch;
  // Called when a request arrives, and when its tokens or its end reach the client.
  std::function<void(RequestId, const SimRequest&)> on_arrival;
  std::function<void(const RequestOutput&, Time)> on_output;
  // Called with every heartbeat.
  std::function<void(Time)> on_tick;

  const cluster::ControllerCore& controller() const { return *controller_; }

 private:
  struct SessionEnd {};
  // A message under way. From a worker: to the controller, or to the worker at `place`. From the
  // controller: to the worker at `place`.
  struct Message {
    int place = 0;
    uint32_t life = 0;
    ConnectionId session;
    Incarnation from;
    std::variant<ToController, SessionEnd, ToWorker, ToPeer> what;
  };
  enum class Kind : uint8_t { kArrival, kMessage, kTimer, kTick, kJoinAgain };
  struct Event {
    Kind kind = Kind::kArrival;
    WorkerTimer timer = WorkerTimer::kLoaded;
    int32_t place = 0;
    uint32_t life = 0;
    uint64_t x = 0;
  };
  // The process at a place.
  struct Process {
    std::unique_ptr<ModelledWorker> worker;  // null: it is not running
    uint32_t life = 0;                       // grows with every start and end
    std::optional<ConnectionId> session;
    bool ended = false;  // by itself; removed when its call returns
    Duration load_time;
    Duration busy;    // of earlier processes
    InstanceUse use;  // the same; KV as sampled
  };

  ClusterSim(ClusterSimOptions options, std::vector<WorkerPlace> places,
             std::unique_ptr<cluster::ControllerCore> controller, Wires wires);

  // WorkerWorld.
  Time now() const override { return now_; }
  void SendUp(int place, ToController message) override;
  bool SendToPeer(int place, Incarnation to, ToPeer message, double bytes) override;
  void After(int place, Duration delay, WorkerTimer timer, uint64_t x) override;
  void EndSession(int place, bool for_good) override;
  void BatchStarted(int place, const cost::BatchShape& shape, Time end) override;
  void PullEnded(double seconds) override { kv_transfer_.Add(seconds); }

  Status StartUp();
  bool HandleNext();  // false: nothing is left before the limit
  void Handle(const Event& event);
  void Tick();
  bool Done() const;
  void Arrive(const SimRequest& request);
  bool Submit(RequestId id);
  bool SubmitBacklog();
  void Hear(RequestOutput& output);

  // cluster_sim_messages.cc
  void Post(Time at, Message message);
  void Deliver(Message message);
  void SettleController();
  void Do(cluster::SendToWorker& action);
  void Do(cluster::Disconnect& action);
  Duration DelayOf(const StepPlan& plan) const;
  void NotePull(int place);
  void Reap(int place);

  // cluster_sim_membership.cc
  std::optional<Time> NextChange() const;
  void Change();
  Duration LoadTimeOf(size_t change) const;
  void StartWorker(int place, Duration load_time);
  void EndWorker(int place);
  void LoseSession(int place);
  void NoteLost(const std::vector<sched::RequestInfo>& before);
  void NoteDrained(const std::vector<sched::RequestInfo>& before);
  void NoteWaiting();

  // cluster_sim_report.cc
  void SampleKv();
  InstanceUse UseOf(const Process& process) const;
  Duration BusyOf(const Process& process) const;
  void AddStages(ClusterReport& report) const;
  void AddMembership(ClusterReport& report) const;
  ClusterReport Report();

  const ClusterSimOptions options_;
  std::unique_ptr<cluster::ControllerCore> controller_;
  Wires wires_;
  Time now_;
  EventQueue<Event> events_;
  size_t ticks_ = 0;  // in events_
  Slots<Message> messages_;
  std::deque<int> ready_;           // messages that arrive now, in order
  std::vector<Process> processes_;  // by place
  const std::vector<WorkerPlace> places_;
  std::map<ConnectionId, int> sessions_;
  uint64_t next_session_ = 1, next_incarnation_ = 1;
  std::unordered_map<Incarnation, int> place_of_;

  Recorder recorder_;
  LoadSampler load_;
  RequestMaker requests_;
  Workload* workload_ = nullptr;
  std::optional<SimRequest> next_;
  std::deque<RequestId> backlog_;  // refused by a full queue, and asking again
  bool room_ = false;              // the queue may be shorter than at the last attempt
  int idle_ticks_ = 0;
  bool stopped_ = false;
  bool gave_up_ = false;              // nothing will happen any more
  const bool apart_;                  // prefill and decode
  std::map<RequestId, Time> handed_;  // to decode, and not pulled yet: since when
  Quantiles kv_wait_, kv_transfer_;
  Availability availability_;  // of the nodes
  size_t next_change_ = 0;
  MembershipReport moves_;  // requests only
  // Taken out of the pipelines of a machine that leaves, and their computed tokens.
  std::map<RequestId, int> drained_;
  uint64_t hand_overs_ = 0;
  uint64_t steps_ = 0, batches_ = 0, events_done_ = 0, arrived_ = 0, ticks_done_ = 0;
  StepRecord record_;
  // KV in use at the last sample, by pipeline.
  std::map<int, int> samples_;  // blocks in use, by place
  Time sampled_at_;
  std::vector<cluster::ControllerAction> actions_;
  std::vector<RequestOutput> outputs_;
};

}  // namespace millrace::sim
