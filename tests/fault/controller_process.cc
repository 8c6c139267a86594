#include "tests/fault/controller_process.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "stage/testing/hash_grammar.h"

namespace millrace::sim::fault {
namespace {

constexpr Duration kTick = Duration::Millis(250);
// Requests whose class does not come back fail before they count as starved, and none fails during
// the longest pause (9 s) and the loads after it.
constexpr Duration kWaitingLimitOfClasses = Duration::Seconds(20);

size_t BytesOf(const ToWorker& message) {
  const auto* step = std::get_if<PipelineStep>(&message);
  return 96 + (step ? step->plan->tokens.size() * 4 + step->plan->sequences.size() * 32 : 0);
}

ConnectionId NameOf(NetworkConnectionId id) { return ConnectionId(id); }

void Add(ControllerTotals& totals, const cluster::ControllerCounters& c) {
  totals.pipelines_lost += c.pipelines_lost;
  totals.pipelines_opened += c.pipelines_opened;
  totals.replays += c.replays;
  totals.fetched += c.fetched;
  totals.computed_in_part += c.computed_in_part;
  totals.moves += c.moves;
  totals.moves_failed += c.moves_failed;
  totals.failed_by_losses += c.failed_by_losses;
  totals.stale += c.stale_messages;
  totals.joins += c.joins;
  totals.joins_refused += c.joins_refused;
  totals.workers_lost += c.workers_lost;
  totals.workers_still += c.workers_still;
  totals.plans_given_up += c.plans_given_up;
  totals.leases_renewed += c.leases_renewed;
  totals.drained_finished += c.drained_finished;
  totals.drained_replayed += c.drained_replayed;
}

}  // namespace

ControllerProcess::ControllerProcess(const Scenario& scenario, Clients& clients, World& world)
    : scenario_(scenario), clients_(clients), world_(world) {
  if (!scenario.autopilot) return;
  autopilot_.emplace(scenario, [this](WorkerPlan plan) -> Result<int64_t> {
    MR_RETURN_IF_ERROR(controller_->ApplyPlan(std::move(plan.plan), std::move(plan.workers)));
    return controller_->newest_epoch();
  });
}

cluster::ControllerOptions ControllerProcess::Options() const {
  cluster::ControllerOptions o;
  o.term = Term(term_);
  o.store = fmt::format("store {}", store_);
  // Ids contain the term, so they must differ although it comes again.
  if (store_ > 0) o.last_id = Mix64(scenario_.seed ^ store_) >> (65 - cluster::IdSource::kIdBits);
  o.model = "hash";
  o.num_layers = scenario_.model.num_layers;
  o.scheduler = scenario_.scheduler;
  o.scheduler.check_results = {scenario_.model.vocab_size,
                               static_cast<int>(stage::HashModel::Numbers(0).size()),
                               std::make_shared<stage::HashGrammars>(scenario_.model.vocab_size)};
  o.token_table = {"of the hash model", std::make_shared<const std::string>("none")};
  o.shape = scenario_.shape;
  o.plan = scenario_.plan;
  o.heartbeat_every = kTick;
  o.first_batch_limit = Duration::Seconds(5);
  o.still_limit = Duration::Seconds(3);
  o.steps = {.least = Duration::Seconds(4),
             .first = Duration::Seconds(6),
             .grace = Duration::Seconds(0.5),
             .open = Duration::Seconds(10)};
  o.identity.model_fingerprint = Scenario::kModelFingerprint;
  o.cross_class_replay = scenario_.cross_class_replay;
  if (scenario_.classes > 1) o.waiting_limit = kWaitingLimitOfClasses;
  o.hold_limit = scenario_.hold_limit;
  o.secret = scenario_.seed;
  return o;
}

void ControllerProcess::Start() {
  term_ += world_.defect() == Defect::kOldTerm && term_ > 0 ? 0 : 1;
  auto created = cluster::ControllerCore::Create(Options());
  MR_CHECK(created.ok()) << created.status().ToString();
  controller_ = std::move(*created);
  if (autopilot_) autopilot_->Start();
  for (size_t q = 0; q < clients_.size(); ++q) {
    if (!clients_.accepted(q) || clients_.ended(q)) continue;
    const Status submitted =
        controller_->Submit(clients_.RequestOf(q), world_.now(), clients_.ComputedBy(q));
    if (!submitted.ok()) clients_.Refused(q, submitted);
  }
  Settle();
  world_.Timer(0, kTick, TimerKind::kTick, 0);
}

void ControllerProcess::Kill() {
  Add(totals_, controller_->counters());
  controller_.reset();
  sessions_.clear();
  session_of_.clear();
  pipelines_.clear();
}

void ControllerProcess::LoseStore() {
  ++store_;
  term_ = 0;
  newest_worker_ = {};
  newest_pipeline_ = {};
}

ControllerTotals ControllerProcess::Totals() const {
  ControllerTotals totals = totals_;
  if (controller_) Add(totals, controller_->counters());
  return totals;
}

void ControllerProcess::Deliver(Delivery delivery) {
  const Time now = world_.now();
  if (!delivery.payload) {
    if (delivery.channel != Channel::kSession) return;
    if (world_.defect() == Defect::kKeepSession) return;
    sessions_.erase(delivery.connection);
    controller_->ConnectionLost(NameOf(delivery.connection), Unavailable("its connection is gone"),
                                now);
  } else if (const auto* beat = std::get_if<Heartbeat>(&*delivery.payload)) {
    const auto session = session_of_.find(beat->incarnation);
    if (session == session_of_.end()) return;
    controller_->Beat(NameOf(session->second), *beat, now);
  } else if (auto* up = std::get_if<ToController>(&*delivery.payload)) {
    if (const auto* join = std::get_if<Join>(up)) {
      session_of_[join->address.incarnation] = delivery.connection;
    }
    Receive(delivery.connection, std::move(*up));
  }
  Settle();
}

// A message that names a closed pipeline is counted and has no other effect.
void ControllerProcess::Receive(NetworkConnectionId from, ToController message) {
  PipelineId pipeline;
  bool late = false;
  if (auto* done = std::get_if<StepDone>(&message)) {
    pipeline = done->pipeline;
    late = !pipelines_.contains(pipeline);
    const bool redirect = world_.defect() == Defect::kLateSteps && late && !pipelines_.empty();
    if (redirect) done->pipeline = *pipelines_.rbegin();
  }
  const uint64_t stale = controller_->counters().stale_messages;
  controller_->Receive(NameOf(from), std::move(message), world_.now());
  if (!late) return;
  controller_->TakeOutputs(outputs_);
  if (controller_->counters().stale_messages != stale + 1 || !outputs_.empty()) {
    world_.Broken(
        Invariant::kStaleIsCounted,
        fmt::format("a step of pipeline {}, which is closed, was not dropped", pipeline.value()));
  }
}

void ControllerProcess::OnTick() {
  const bool drop = world_.defect() == Defect::kDropSession && world_.now().ns > 1'000'000'000;
  if (drop && !sessions_.empty() && !std::exchange(dropped_, true)) {
    world_.network().Reset(*sessions_.begin(), world_.now());
  }
  controller_->Tick(world_.now());
  if (autopilot_ && world_.now() < scenario_.quiet_at) {
    autopilot_->Tick(controller_->Describe(world_.now()), world_.now());
  }
  Settle();
  world_.Timer(0, kTick, TimerKind::kTick, 0);
}

void ControllerProcess::Ask(size_t test_request) {
  sched::NewRequest request = clients_.RequestOf(test_request);
  if (autopilot_) {
    autopilot_->Arrived(request.id, static_cast<int>(request.prompt->size()), world_.now());
  }
  const Status submitted = controller_->Submit(std::move(request), world_.now());
  if (submitted.ok()) {
    clients_.Accepted(test_request);
  } else {
    clients_.Refused(test_request, submitted);
  }
  Settle();
}

void ControllerProcess::Abort(size_t test_request) {
  clients_.Aborted(test_request);
  controller_->Abort(Clients::IdOf(test_request), std::nullopt, world_.now());
  Settle();
}

void ControllerProcess::Drain(const std::string& worker) {
  if (!controller_->DrainWorker(worker).ok()) ++operations_refused_;
  Settle();
}

void ControllerProcess::Migrate(size_t test_request, const std::string& worker) {
  if (!controller_->Migrate(Clients::IdOf(test_request), worker, world_.now()).ok()) {
    ++operations_refused_;
  }
  Settle();
}

void ControllerProcess::Apply(const Plan& plan) {
  if (!controller_->ApplyPlan(plan, {}).ok()) ++operations_refused_;
  Settle();
}

void ControllerProcess::Settle() {
  if (!(world_.defect() == Defect::kIdle && term_ > 1)) controller_->Advance(world_.now());
  actions_.clear();
  controller_->TakeActions(actions_);
  for (auto& action : actions_) std::visit([this](auto& a) { Do(a); }, action);
  controller_->TakeOutputs(outputs_);
  for (RequestOutput& output : outputs_) Deliver(output);
  outputs_.clear();
}

void ControllerProcess::Deliver(RequestOutput& output) {
  if (output.times) {
    MR_CHECK(output.account && output.account->until() <= world_.now())
        << "request " << output.request << " has no account of its time";
    output.account->CheckIntegrity();
  }
  const Defect defect = world_.defect();
  const bool victim = output.request == RequestId(2);
  if (victim && defect == Defect::kLoseOutput && !output.finish) return;
  if (victim && defect == Defect::kEarlyEnd) output.finish = FinishReason::kLength;
  if (victim && defect == Defect::kFailRequest) output.finish = FinishReason::kError;
  if (autopilot_) autopilot_->Heard(output, world_.now());
  const uint64_t pipelines_lost = Totals().pipelines_lost;
  clients_.Take(output, world_.now(), pipelines_lost);
  if (victim && defect == Defect::kDeliveredTwice && output.finish) {
    clients_.Take(output, world_.now(), pipelines_lost);
  }
}

// Applies a test's defect to a message to be sent; false: the message is lost.
bool ControllerProcess::Spoil(ToWorker& message) {
  const Defect defect = world_.defect();
  if (auto* step = std::get_if<PipelineStep>(&message)) {
    const bool skip = defect == Defect::kSkipBlock && step->plan->id == StepId(3);
    const bool wrong = defect == Defect::kWrongBlock && step->plan->blocks.size() > 1;
    if (skip || wrong) {
      auto plan = std::make_shared<StepPlan>(*step->plan);
      if (skip) plan->sequences[0].keep_blocks += 4;
      if (wrong) plan->blocks[0] = plan->blocks[1];
      step->plan = std::move(plan);
    }
  }
  return !(defect == Defect::kDropClose && std::holds_alternative<ClosePipeline>(message)) &&
         !(defect == Defect::kKeepHeld && std::holds_alternative<ReleaseKv>(message)) &&
         !(defect == Defect::kKeepShard && std::holds_alternative<UnloadShard>(message));
}

void ControllerProcess::Do(cluster::SendToWorker& action) {
  const auto to = static_cast<NetworkConnectionId>(action.to.value());
  if (const auto* welcome = std::get_if<Welcome>(&action.message)) {
    sessions_.insert(to);
    if (welcome->worker <= newest_worker_ || welcome->term != Term(term_)) {
      world_.Broken(Invariant::kNamesGrow,
                    fmt::format("worker {} in term {} after worker {}", welcome->worker.value(),
                                welcome->term.value(), newest_worker_.value()));
    }
    newest_worker_ = welcome->worker;
  } else if (const auto* open = std::get_if<OpenPipeline>(&action.message)) {
    if (open->pipeline < newest_pipeline_) {
      world_.Broken(Invariant::kNamesGrow,
                    fmt::format("pipeline {} after pipeline {}", open->pipeline.value(),
                                newest_pipeline_.value()));
    }
    newest_pipeline_ = open->pipeline;
    pipelines_.insert(open->pipeline);
  } else if (const auto* close = std::get_if<ClosePipeline>(&action.message)) {
    pipelines_.erase(close->pipeline);
  }
  if (!Spoil(action.message)) return;
  const size_t bytes = BytesOf(action.message);
  world_.network().Send(to, 0, std::move(action.message), bytes, world_.now());
}

void ControllerProcess::Do(cluster::Disconnect& action) {
  const auto connection = static_cast<NetworkConnectionId>(action.connection.value());
  sessions_.erase(connection);
  world_.network().Close(connection, 0, world_.now());
}

}  // namespace millrace::sim::fault
