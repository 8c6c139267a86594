#include "sim/cluster/cluster_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::sim {
namespace {

constexpr Time kStartAt{-60'000'000'000};  // the cluster starts this long before time 0
constexpr Duration kNever = Duration::Seconds(1e9);
constexpr uint64_t kProgressEvery = 1024;          // arrivals
constexpr uint64_t kSampleEvery = 4;               // ticks
constexpr Duration kIdle = Duration::Seconds(60);  // nothing but ticks: the rest never ends

Status CheckPlan(const ClusterSimOptions& options, const Links& links) {
  const bool by_stage = options.workers == SimWorkers::kByStage;
  const size_t workers = by_stage ? options.plan.stages.size() : options.cluster.nodes.size();
  if (options.machines.size() != workers) {
    return InvalidArgument(fmt::format("{} machines for {} {}", options.machines.size(), workers,
                                       by_stage ? "stages" : "nodes"));
  }
  const int nodes = static_cast<int>(options.cluster.nodes.size());
  for (size_t i = 0; i < options.plan.stages.size(); ++i) {
    const std::vector<NodeIndex>& on = options.plan.stages[i].nodes;
    if (on.empty() || std::ranges::any_of(on, [&](int n) { return n < 0 || n >= nodes; })) {
      return InvalidArgument(fmt::format("stage {} is on no node of the cluster", i));
    }
  }
  const auto node_of = [&](const std::optional<int>& stage) {
    return stage ? options.plan.stages[static_cast<size_t>(*stage)].nodes.front()
                 : options.cluster.coordinator();
  };
  const auto name_of = [&](int node) {
    return node == options.cluster.coordinator()
               ? "the coordinator"
               : options.cluster.nodes[static_cast<size_t>(node)].name;
  };
  for (const PlanEdge& edge : options.plan.edges) {
    const int from = node_of(edge.from), to = node_of(edge.to);
    if (options.other_links || links.Connected(from, to)) continue;
    return InvalidArgument(
        fmt::format("the plan sends from {} to {}, and the cluster has no link between them",
                    name_of(from), name_of(to)));
  }
  return OkStatus();
}

std::vector<WorkerPlace> PlacesOf(const ClusterSimOptions& options) {
  std::vector<WorkerPlace> places;
  if (options.workers == SimWorkers::kByStage) {
    for (const StagePlan& stage : options.plan.stages) {
      places.push_back({fmt::format("stage {}", places.size()), stage.nodes});
    }
    return places;
  }
  for (const NodeSpec& node : options.cluster.nodes) {
    places.push_back({node.name, {static_cast<NodeIndex>(places.size())}});
  }
  return places;
}

// The devices of a worker act as one.
void AsOneWorkerEach(Plan& plan) {
  for (StagePlan& stage : plan.stages) stage.tensor_parallel = 1;
}

cluster::ControllerOptions ControllerOptionsOf(const ClusterSimOptions& options,
                                               const std::vector<WorkerPlace>& places) {
  cluster::ControllerOptions o = options.controller;
  if (options.limits.tpot_s) o.tpot_limit = Duration::Seconds(*options.limits.tpot_s);
  o.term = Term(1);
  o.model = options.plan.model;
  o.num_layers = options.plan.num_layers;
  o.plan = options.plan;
  o.node_names.clear();
  for (const WorkerPlace& place : places) o.node_names.push_back(place.name);
  if (options.workers == SimWorkers::kByStage) {
    for (size_t i = 0; i < o.plan->stages.size(); ++i) {
      o.plan->stages[i].nodes = {static_cast<NodeIndex>(i)};
    }
  }
  AsOneWorkerEach(*o.plan);
  o.stuck_limit = o.first_batch_limit = o.still_limit = kNever;
  o.steps.least = o.steps.open = kNever;
  o.waiting_limit = kNever;
  return o;
}

}  // namespace

Result<std::unique_ptr<ClusterSim>> ClusterSim::Create(ClusterSimOptions options) {
  Links links(options.cluster, options.other_links);
  MR_RETURN_IF_ERROR(CheckPlan(options, links));
  std::vector<WorkerPlace> places = PlacesOf(options);
  MR_ASSIGN_OR_RETURN(auto controller,
                      cluster::ControllerCore::Create(ControllerOptionsOf(options, places)));
  std::vector<int> nodes;
  for (const WorkerPlace& place : places) nodes.push_back(place.nodes.front());
  Wires wires(std::move(links), options.cluster, std::move(nodes), options.inside_node);
  std::unique_ptr<ClusterSim> sim(new ClusterSim(std::move(options), std::move(places),
                                                 std::move(controller), std::move(wires)));
  MR_RETURN_IF_ERROR(sim->StartUp());
  return sim;
}

Result<int64_t> ClusterSim::ApplyPlan(Plan plan, std::vector<std::string> workers) {
  MR_CHECK(options_.workers == SimWorkers::kByNode);
  AsOneWorkerEach(plan);
  MR_RETURN_IF_ERROR(controller_->ApplyPlan(std::move(plan), std::move(workers)));
  SettleController();
  return controller_->newest_epoch();
}

ClusterSim::ClusterSim(ClusterSimOptions options, std::vector<WorkerPlace> places,
                       std::unique_ptr<cluster::ControllerCore> controller, Wires wires)
    : options_(std::move(options)),
      controller_(std::move(controller)),
      wires_(std::move(wires)),
      now_(kStartAt),
      processes_(places.size()),
      places_(std::move(places)),
      recorder_(options_.limits, options_.measure_from),
      requests_(options_.controller.scheduler.prefix_caching),
      apart_(std::ranges::any_of(options_.plan.stages,
                                 [](const StagePlan& s) { return s.role == StageRole::kPrefill; })),
      availability_(static_cast<int>(options_.cluster.nodes.size())) {}

ClusterSim::~ClusterSim() = default;

// The machines that are there at time 0 have joined and loaded by then.
Status ClusterSim::StartUp() {
  if (options_.membership.empty()) {
    for (int place = 0; place < std::ssize(processes_); ++place) StartWorker(place, {});
  }
  while (NextChange() == Time{}) Change();
  while (!ready_.empty() || !events_.empty()) HandleNext();
  MR_CHECK(now_ <= Time{}) << "the cluster needs more than a minute to start";
  now_ = sampled_at_ = Time{};
  const auto missing = controller_->Missing();
  if (missing && options_.membership.empty()) {
    return FailedPrecondition("the plan cannot be served: " + *missing);
  }
  return OkStatus();
}

ClusterReport ClusterSim::Run(Workload& workload) {
  workload_ = &workload;
  next_ = workload.Next();
  if (next_) events_.Push(next_->arrival + options_.front_end, {});
  events_.Push(now_ + options_.controller.heartbeat_every, {.kind = Kind::kTick});
  ++ticks_;
  while (!stopped_ && !Done() && HandleNext()) {
  }
  return Report();
}

bool ClusterSim::Done() const { return !next_ && recorder_.alive() == 0 && ready_.empty(); }

bool ClusterSim::HandleNext() {
  if (!ready_.empty()) {
    const int slot = ready_.front();
    ready_.pop_front();
    Message message = std::move(messages_[slot]);
    messages_.Free(slot);
    Deliver(std::move(message));
    return true;
  }
  const std::optional<Time> change = NextChange();
  const bool changes = change && (events_.empty() || *change <= events_.next_time());
  const Time at = changes ? *change : events_.next_time();
  if (options_.stop_at && at > *options_.stop_at) {
    now_ = *options_.stop_at;
    return false;
  }
  now_ = at;
  if (changes) {
    Change();
    return true;
  }
  const Event event = events_.Pop();
  ++events_done_;
  Handle(event);
  const Duration idle{idle_ticks_ * options_.controller.heartbeat_every.ns};
  gave_up_ = idle > kIdle;
  return !gave_up_;
}

void ClusterSim::Handle(const Event& event) {
  if (event.kind != Kind::kTick) idle_ticks_ = 0;
  switch (event.kind) {
    case Kind::kArrival:
      Arrive(*next_);
      next_ = workload_->Next();
      if (next_) events_.Push(next_->arrival + options_.front_end, {});
      return;
    case Kind::kTick: return Tick();
    case Kind::kMessage: {
      const auto slot = static_cast<int>(event.x);
      Message message = std::move(messages_[slot]);
      messages_.Free(slot);
      return Deliver(std::move(message));
    }
    case Kind::kTimer: {
      Process& process = processes_[static_cast<size_t>(event.place)];
      if (process.life != event.life) return;
      process.worker->OnTimer(event.timer, event.x);
      return Reap(event.place);
    }
    case Kind::kJoinAgain: {
      Process& process = processes_[static_cast<size_t>(event.place)];
      if (process.life != event.life) return;
      process.session = ConnectionId(next_session_++);
      sessions_[*process.session] = event.place;
      process.worker->Join();
      return Reap(event.place);
    }
  }
}

// Heartbeats arrive with the controller's tick.
void ClusterSim::Tick() {
  --ticks_;
  if (ticks_done_++ % kSampleEvery == 0) SampleKv();
  for (const Process& process : processes_) {
    if (process.worker && process.session) {
      controller_->Beat(*process.session, process.worker->Beat(), now_);
    }
  }
  controller_->Tick(now_);
  SettleController();
  if (on_tick && now_ >= Time{}) on_tick(now_);
  const bool quiet = events_.empty() && ready_.empty() && !NextChange();
  idle_ticks_ = quiet ? idle_ticks_ + 1 : 0;
  events_.Push(now_ + options_.controller.heartbeat_every, {.kind = Kind::kTick});
  ++ticks_;
}

void ClusterSim::Arrive(const SimRequest& request) {
  if (on_progress && arrived_ % kProgressEvery == 0) on_progress(arrived_, request.arrival);
  ++arrived_;
  load_.Arrived(request.arrival, recorder_);
  const RequestId id = recorder_.Arrived(request);
  if (on_arrival) on_arrival(id, request);
  if (!backlog_.empty() || !Submit(id)) backlog_.push_back(id);
  NoteWaiting();
  SettleController();
}

// False: the controller's queue is full, and the client asks again.
bool ClusterSim::Submit(RequestId id) {
  const Status taken = controller_->Submit(requests_.Make(id, recorder_.request(id)), now_);
  if (taken.code() == StatusCode::kResourceExhausted) return false;
  if (!taken.ok()) recorder_.Refused(id);
  return true;
}

// The oldest first. False: none was submitted.
bool ClusterSim::SubmitBacklog() {
  if (!std::exchange(room_, false)) return false;
  bool some = false;
  while (!backlog_.empty() && Submit(backlog_.front())) {
    backlog_.pop_front();
    some = true;
  }
  return some;
}

void ClusterSim::Hear(RequestOutput& output) {
  const RequestId id = output.request;
  room_ = room_ || output.finish || !recorder_.HasOutput(id);
  if (on_output) on_output(output, now_);
  if (output.finish == FinishReason::kError || output.finish == FinishReason::kAbort) {
    handed_.erase(id);
    return recorder_.Refused(id);
  }
  const bool first = !output.tokens.empty() && !recorder_.HasOutput(id);
  if (!first && !handed_.empty()) handed_.erase(id);
  if (recorder_.Heard(output, now_) || !first || !apart_) return;
  handed_.emplace(id, now_);
  ++hand_overs_;
}

}  // namespace millrace::sim
