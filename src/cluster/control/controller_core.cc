// Creation, operators' calls, time, and the layout that pipelines follow.
#include "cluster/control/controller_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/control/layout/slot_assignment.h"

namespace millrace::cluster {
Result<std::unique_ptr<ControllerCore>> ControllerCore::Create(ControllerOptions options) {
  if (options.num_layers < 1) return InvalidArgument("the model has no layers");
  options.scheduler.stages = 1;
  if (options.scheduler.num_host_blocks == 0) {
    options.scheduler.preemption = sched::PreemptionMode::kRecompute;
  }
  const bool automatic = !options.plan.has_value();
  LayoutShape shape = options.shape;
  if (shape.replicas < 1 || (shape.prefill > 0) != (shape.decode > 0)) {
    return InvalidArgument(
        fmt::format("a layout needs pipelines: {} for prefill, {} for decode, {} for both",
                    shape.prefill, shape.decode, shape.replicas));
  }
  shape.stages = std::clamp(shape.stages, 1, options.num_layers);
  Plan plan = automatic ? PlanFor(shape, options.model, options.num_layers) : *options.plan;
  MR_RETURN_IF_ERROR(CheckLayers(plan, options.num_layers));
  MR_ASSIGN_OR_RETURN(Layout layout, MakeLayout(std::move(plan), options.node_names));
  layout.automatic = automatic;
  std::unique_ptr<ControllerCore> controller(new ControllerCore(std::move(options)));
  controller->deployment_.Begin(std::move(layout));
  return controller;
}

ControllerCore::ControllerCore(ControllerOptions options)
    : options_(std::move(options)),
      ids_(options_.term, options_.last_id),
      members_(options_),
      outbox_(members_),
      machines_({.num_layers = options_.num_layers,
                 .max_batched_tokens = options_.scheduler.max_num_batched_tokens,
                 .link_probes = options_.link_probes},
                members_, outbox_),
      deployment_(options_,
                  {.model_fingerprint = options_.identity.model_fingerprint,
                   .max_batched_tokens = options_.scheduler.max_num_batched_tokens,
                   .max_model_len = options_.scheduler.max_model_len,
                   .secret = options_.secret,
                   .links = machines_.probes()},
                  members_, ids_, outbox_),
      pipelines_({.scheduler = options_.scheduler,
                  .num_layers = options_.num_layers,
                  .tpot_limit = options_.tpot_limit,
                  .step_log = options_.step_log,
                  .steps = options_.steps},
                 members_, ids_, outbox_, memory_),
      requests_({options_.scheduler.max_model_len, options_.scheduler.block_size,
                 options_.waiting_max, options_.waiting_limit, options_.deaths_max,
                 options_.scheduler.max_num_batched_tokens}),
      transfers_({.num_layers = options_.num_layers,
                  .block_size = options_.scheduler.block_size,
                  .migrations_max = ControllerOptions::kMovesMax,
                  .hold_limit = options_.hold_limit,
                  .waiting_limit = options_.waiting_limit,
                  .secret = options_.secret,
                  .links = machines_.probes()},
                 members_, deployment_, pipelines_, requests_, memory_, ids_, outbox_),
      lifecycle_({.block_size = options_.scheduler.block_size,
                  .waiting_limit = options_.waiting_limit,
                  .overtake_limit = options_.overtake_limit,
                  .hold_limit = options_.hold_limit},
                 options_, members_, deployment_, pipelines_, requests_, transfers_, memory_,
                 counters_),
      closer_(options_.hold_limit, members_, deployment_, pipelines_, requests_, transfers_,
              memory_, lifecycle_, counters_),
      view_({.term = options_.term,
             .scheduler = options_.scheduler,
             .cross_class_replay = options_.cross_class_replay},
            {members_, machines_, deployment_, memory_, pipelines_, requests_, transfers_,
             lifecycle_, counters_}) {}

ControllerCore::~ControllerCore() = default;

void ControllerCore::Receive(ConnectionId from, ToController message, Time now) {
  if (members_.Find(from) == nullptr && !std::holds_alternative<Join>(message)) {
    ++counters_.stale_messages;  // from a worker that was given up
    return;
  }
  std::visit(
      [&](const auto& m) {
        if constexpr (requires(Worker & worker) { machines_.On(worker, m, now); }) {
          machines_.On(*members_.Find(from), m, now);
          pipelines_.FollowProfile(members_.Find(from)->id);
        } else {
          On(from, m, now);
        }
      },
      message);
}

Status ControllerCore::ApplyPlan(Plan plan, std::vector<std::string> node_names) {
  MR_RETURN_IF_ERROR(CheckLayers(plan, options_.num_layers));
  MR_ASSIGN_OR_RETURN(Layout layout, MakeLayout(std::move(plan), std::move(node_names)));
  MR_RETURN_IF_ERROR(CheckNames(layout, members_));
  MR_RETURN_IF_ERROR(CheckBits(layout, members_));
  deployment_.Begin(std::move(layout));
  return OkStatus();
}

Status ControllerCore::DrainWorker(std::string_view name) {
  Worker* worker = members_.Find(name);
  if (worker == nullptr) {
    return NotFound(fmt::format("no worker is named {}; `millrace status` lists them", name));
  }
  MR_RETURN_IF_ERROR(deployment_.Drain(worker->id));
  worker->drain_ordered = true;
  return OkStatus();
}

Status ControllerCore::Migrate(RequestId id, std::string_view name, Time now) {
  const Worker* worker = members_.Find(name);
  if (worker == nullptr) {
    return NotFound(fmt::format("no worker is named {}; `millrace status` lists them", name));
  }
  const Requests::Request* request = requests_.Find(id);
  if (request == nullptr) return NotFound("the request is unknown or has ended");
  if (!request->pipeline)
    return FailedPrecondition("the request is waiting and has no KV to migrate");
  if (transfers_.Moves(id)) return FailedPrecondition("the request is already migrating");
  Pipeline& from = pipelines_.at(*request->pipeline);
  if (from.Uses(worker->id)) {
    return FailedPrecondition(fmt::format("the request already runs on {}", name));
  }
  for (auto& [pipeline_id, pipeline] : pipelines_.all()) {
    if (pipeline.open && !pipeline.retiring && pipeline.role != StageRole::kPrefill &&
        pipeline.Uses(worker->id)) {
      return transfers_.Migrate(id, from, pipeline, now);
    }
  }
  return FailedPrecondition(fmt::format("no open pipeline uses worker {}; {}", name,
                                        layout().pipelines.empty()
                                            ? "one opens for the first request that is routed there"
                                            : "retry in a moment"));
}

void ControllerCore::Tick(Time now) {
  for (const Membership::Loss& loss : members_.Lost(now)) {
    if (loss.stands_still) {
      LoseStillWorker(loss.worker, loss.reason, now);
    } else {
      LoseWorker(loss.worker, loss.reason, true, now);
    }
  }
  for (const auto& [worker, why] : pipelines_.Holders(now)) LoseStillWorker(worker, why, now);
  requests_.StoodStill(members_.stood_still());
  lifecycle_.Expire(now);
  transfers_.Tick(now);
  requests_.TryQueue();
  pipelines_.TouchAll();  // leases and overdue retries
  deployment_.Check();
  machines_.Tick(requests_.size() > 0 || deployment_.changing(), now);
  closer_.LookAgain();
}

void ControllerCore::Advance(Time now) {
  Reconcile(now);
  lifecycle_.Dispatch(now);
  for (auto& [id, request] : transfers_.ContinuePauses(now)) {
    lifecycle_.Requeue(id, std::move(request), TimeCause::kMove, now);
  }
  const std::set<PipelineId> starved =
      pipelines_.FormSteps(now, [&](Pipeline& pipeline) { transfers_.StartPulls(pipeline, now); });
  if (!starved.empty()) closer_.MakeRoom(starved, now);
}

// Brings the workers to what the deployment wants, and the pipelines to the layout in force.
void ControllerCore::Reconcile(Time now) {
  if (transfers_.TakeDropped()) closer_.LookAgain();
  while (deployment_.due() || closer_.due()) {
    if (deployment_.due()) FollowLayout(deployment_.Reconcile(InUse(), now), now);
    closer_.Retire(now);
  }
}

Deployment::InUse ControllerCore::InUse() const {
  Deployment::InUse in_use;
  const auto add = [&](const PipelineHop& hop, std::set<WorkerId>& workers) {
    in_use.shards.insert(hop.shards.begin(), hop.shards.end());
    for (const WorkerAddress& rank : hop.ranks) workers.insert(rank.worker);
  };
  for (const auto& [id, pipeline] : pipelines_.all()) {
    for (const PipelineHop& hop : pipeline.hops) add(hop, in_use.running);
  }
  transfers_.ForEachSurvivingHop([&](const PipelineHop& hop) { add(hop, in_use.keeping); });
  return in_use;
}

void ControllerCore::FollowLayout(const Deployment::Changes& changes, Time now) {
  if (changes.switched) pipelines_.RetireUnplanned(layout());
  if (changes.switched || changes.stages) {
    pipelines_.RetireClosing(layout());
    lifecycle_.DropLostPlaces();
    requests_.TryQueue();
    closer_.LookAgain();
  }
  OpenPipelines(now);
}

// Opens all pipelines in advance. A prompt that is handed over keeps its KV only if its decode
// pipeline is open.
void ControllerCore::OpenPipelines(Time now) {
  for (const PlannedPipeline& planned : layout().pipelines) {
    (void)pipelines_.FindOrOpen(layout(), planned.route, planned.role, now);
  }
}

}  // namespace millrace::cluster
