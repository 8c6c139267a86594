// Pipelines: opening them over a route's workers, forming their steps, losing and closing them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/control/controller_core.h"
#include "sched/step_log.h"

namespace millrace::cluster {
namespace {

// Back-off for opening a lost pipeline's route again.
constexpr Duration kRetryFirst = Duration::Seconds(0.05);
constexpr Duration kRetryMost = Duration::Seconds(2);

// With a router, pipelines share the memory of their stages, and the router limits what they use
// together. Each request may leave most of a block empty, so each pipeline gets extra blocks.
int WithSlack(int64_t blocks, int64_t sequences_max) {
  return static_cast<int>(
      std::min<int64_t>(blocks + sequences_max + 1, std::numeric_limits<int>::max() / 2));
}

std::string PipelineKey(const std::vector<PipelineHop>& hops) {
  std::string key;
  for (const PipelineHop& hop : hops) {
    key += fmt::format("{}[{},{})", hop.shards.front().value(), hop.layers.begin, hop.layers.end);
  }
  return key;
}

// All pipelines write to one log, so each line names its pipeline. `line` is a JSON object.
std::function<void(std::string_view)> NamedLines(std::function<void(std::string_view)> write,
                                                 PipelineId id) {
  return [write = std::move(write),
          start = fmt::format("{{\"pipeline\":{},", id.value())](std::string_view line) {
    MR_CHECK(line.starts_with('{'));
    write(start + std::string(line.substr(1)));
  };
}

}  // namespace

bool ControllerCore::Pipeline::Uses(WorkerId worker) const {
  return std::ranges::any_of(workers, [&](const std::vector<WorkerId>& hop) {
    return std::ranges::find(hop, worker) != hop.end();
  });
}

ControllerCore::Pipeline* ControllerCore::Find(PipelineId id) {
  const auto found = pipelines_.find(id);
  return found == pipelines_.end() ? nullptr : &found->second;
}

int ControllerCore::BlocksFor(const Route& route) const {
  int64_t tokens = std::numeric_limits<int64_t>::max();
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout().stages[static_cast<size_t>(hop.stage)];
    tokens = std::min(tokens, stage.KvTokenLayers() / hop.layers.size());
  }
  // At most what all sequences can fill at their maximum length, with one step at every hop.
  const sched::SchedulerOptions& each = options_.scheduler;
  const int64_t sequences_max = int64_t{each.max_num_seqs} * std::ssize(route);
  const int64_t longest = (each.max_model_len + each.block_size - 1) / each.block_size;
  const int64_t most = each.num_blocks > 0 ? each.num_blocks : (longest + 1) * (sequences_max + 1);
  const int64_t blocks = std::min(tokens / each.block_size, most);
  if (router_) return WithSlack(blocks, sequences_max);
  return static_cast<int>(std::min<int64_t>(blocks, std::numeric_limits<int>::max() / 2));
}

// The pipeline of a route, open or being opened. Null while one of its stages is not up.
ControllerCore::Pipeline* ControllerCore::PipelineFor(const Route& route, StageRole role,
                                                      Time now) {
  for (auto& [id, pipeline] : pipelines_) {
    const bool same = pipeline.role == role && SameRoute(pipeline.route, route);
    if (same && !pipeline.retiring) return &pipeline;
  }
  const bool up = std::ranges::all_of(
      route, [&](const Hop& hop) { return layout().stages[static_cast<size_t>(hop.stage)].Up(); });
  return up ? OpenPipeline(route, role, now) : nullptr;
}

// The replacement for a lost hop needs the activations that left the hop before it. A prefill
// pipeline also caches them where decode pipelines split the layers. All ranks have the same
// activations, so only the first caches them.
std::vector<int> ControllerCore::CacheActivationsAt(LayerRange hop, StageRole role) const {
  std::set<int> at = {hop.end};
  for (const PlannedPipeline& planned : layout().pipelines) {
    if (role != StageRole::kPrefill || planned.role == StageRole::kPrefill) continue;
    for (const Hop& next : planned.route) at.insert(next.layers.end);
  }
  std::erase_if(at, [&](int layer) {
    return layer <= hop.begin || layer > hop.end || layer == options_.num_layers;
  });
  return {at.begin(), at.end()};
}

ControllerCore::Pipeline* ControllerCore::OpenPipeline(const Route& route, StageRole role,
                                                       Time now) {
  Pipeline pipeline;
  pipeline.route = route;
  pipeline.role = role;
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout().stages[static_cast<size_t>(hop.stage)];
    PipelineHop& there = pipeline.hops.emplace_back();
    there.layers = hop.layers;
    std::vector<WorkerId>& ids = pipeline.workers.emplace_back();
    for (const Slot& slot : stage.ranks) {
      there.ranks.push_back(members_.at(*slot.worker).address);
      there.shards.push_back(slot.shard);
      ids.push_back(*slot.worker);
    }
  }
  const auto retry = pipeline_retry_.find(PipelineKey(pipeline.hops));
  if (retry != pipeline_retry_.end() && now < retry->second.first) return nullptr;
  sched::SchedulerOptions options = options_.scheduler;
  options.num_blocks = pipeline.num_blocks = BlocksFor(route);
  options.stages = static_cast<int>(route.size());
  options.even_steps = true;
  if (router_) options.watermark = 0;
  auto scheduler = sched::Scheduler::Create(options);
  if (!scheduler.ok()) {
    MR_LOG(error, "cannot open a pipeline: {}", scheduler.status().message());
    pipeline_retry_[PipelineKey(pipeline.hops)] = {now + kRetryMost, kRetryMost};
    return nullptr;
  }
  pipeline.scheduler = std::move(*scheduler);
  pipeline.id = PipelineId(NextId());
  if (options_.step_log) {
    pipeline.scheduler = sched::NewRecordingScheduler(std::move(pipeline.scheduler), options,
                                                      NamedLines(options_.step_log, pipeline.id));
  }
  pipeline.prefill = sched::PrefillMeter(options.costs);
  for (size_t hop = 0; hop < pipeline.hops.size(); ++hop) {
    for (size_t rank = 0; rank < pipeline.workers[hop].size(); ++rank) {
      Send(
          pipeline.workers[hop][rank],
          millrace::OpenPipeline{.pipeline = pipeline.id,
                                 .hops = pipeline.hops,
                                 .hop = static_cast<int>(hop),
                                 .rank = static_cast<int>(rank),
                                 .block_size = options.block_size,
                                 .num_blocks = pipeline.num_blocks,
                                 .num_host_blocks = options.num_host_blocks,
                                 .max_batched_tokens = options.max_num_batched_tokens,
                                 .eos_token_ids = options.eos_token_ids,
                                 .cache_activations_at =
                                     rank == 0 ? CacheActivationsAt(pipeline.hops[hop].layers, role)
                                               : std::vector<int>{}});
      pipeline.to_open.insert(pipeline.workers[hop][rank]);
    }
  }
  ++counters_.pipelines_opened;
  turns_.Open(pipeline.id, pipeline.workers);
  return &pipelines_.emplace(pipeline.id, std::move(pipeline)).first->second;
}

// Opens all pipelines in advance. A prompt that is handed over keeps its KV only if its decode
// pipeline is open.
void ControllerCore::OpenPipelines(Time now) {
  for (const PlannedPipeline& planned : layout().pipelines)
    PipelineFor(planned.route, planned.role, now);
}

void ControllerCore::On(ConnectionId from, const PipelineOpened& message, Time now) {
  Pipeline* pipeline = Find(message.pipeline);
  if (pipeline == nullptr || pipeline->open) {
    ++counters_.stale_messages;
    return;
  }
  if (!message.status.ok()) {
    // Surviving stages of lost pipelines may occupy memory that this pipeline needs.
    while (const auto lost = recoverable_.AnyLost()) GiveUpKvIn(*lost);
    return LosePipeline(message.pipeline, message.status, PipelineEnd::kNoFault, {}, now);
  }
  // Waits for each worker's answer: a step must not arrive before its pipeline is open.
  if (pipeline->to_open.erase(members_.Find(from)->id) == 0) ++counters_.stale_messages;
  if (!pipeline->to_open.empty()) return;
  pipeline->open = true;
  requests_.TryQueue();
}

void ControllerCore::On(ConnectionId, const StepDone& message, Time now) {
  Pipeline* pipeline = Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  if (!pipeline_retry_.empty()) pipeline_retry_.erase(PipelineKey(pipeline->hops));
  const bool measured = pipeline->prefill.Done(message.result.id, now);
  const bool swaps = options_.scheduler.num_host_blocks > 0 && pipeline->hops.size() == 1;
  if (measured && swaps) pipeline->scheduler->SetCosts(pipeline->prefill.costs());
  const size_t first = outputs_.size();
  pipeline->scheduler->Commit(message.result, now, outputs_, pipeline->pulls);
  dirty_.insert(pipeline->id);
  if (pipeline->scheduler->steps_in_flight() == 0) turns_.Idle(pipeline->id, dirty_);
  HandleOutputs(*pipeline, first, now);
}

void ControllerCore::On(ConnectionId from, const PipelineBroken& message, Time now) {
  if (Find(message.pipeline) == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  MR_LOG(warn, "worker {} reports a broken pipeline: {}", Printable(members_.Find(from)->join.name),
         Printable(message.reason.message()));
  const Worker* worker = members_.Find(from);
  const bool cut_off = message.reason.code() == StatusCode::kUnavailable ||
                       message.reason.code() == StatusCode::kDeadlineExceeded;
  if (cut_off && !message.suspect) {
    // Its batch could not run with the other ranks: their collective has failed permanently.
    for (const PipelineHop& hop : Find(message.pipeline)->hops) {
      const bool here =
          std::ranges::find(hop.ranks, worker->id, &WorkerAddress::worker) != hop.ranks.end();
      if (!here || hop.ranks.size() == 1) continue;
      const PipelineHop failed = hop;
      return RemakeCollective(failed, message.reason, now);
    }
  }
  const PipelineEnd end = message.suspect ? PipelineEnd::kSuspicion : PipelineEnd::kDeath;
  LosePipeline(message.pipeline, message.reason, end, message.suspect, now);
}

// Ends all pipelines through the stage. Its ranks keep their weights and form a new group.
void ControllerCore::RemakeCollective(const PipelineHop& hop, const Status& reason, Time now) {
  std::vector<PipelineId> through;
  for (const auto& [id, pipeline] : pipelines_) {
    const bool uses = std::ranges::any_of(
        pipeline.hops, [&](const PipelineHop& other) { return other.shards == hop.shards; });
    if (uses) through.push_back(id);
  }
  for (PipelineId id : through) LosePipeline(id, reason, PipelineEnd::kNoFault, {}, now, &hop);
  deployment_.ResetGroup(hop.shards.front());
}

// Closes a pipeline. Its requests continue in other pipelines from the tokens they have.
void ControllerCore::LosePipeline(PipelineId id, const Status& reason, PipelineEnd end,
                                  std::optional<WorkerId> suspect, Time now,
                                  const PipelineHop* failed) {
  Pipeline& pipeline = pipelines_.at(id);
  auto& retry = pipeline_retry_[PipelineKey(pipeline.hops)];
  retry.second = std::clamp(retry.second + retry.second, kRetryFirst, kRetryMost);
  retry.first = now + retry.second;
  ++counters_.pipelines_lost;
  std::set<RequestId> ran;
  for (const sched::RequestInfo& info : pipeline.scheduler->InspectAll(now)) {
    if (info.state == sched::RequestState::kRunning) ran.insert(info.id);
  }
  // If a step failed while all workers are there, its KV may be what made it fail, so it is not
  // kept.
  const bool step_failed =
      end == PipelineEnd::kDeath &&
      std::ranges::all_of(pipeline.hops, [&](const PipelineHop& hop) { return StillThere(hop); });
  if (!step_failed) RetainSurvivingStages(pipeline, failed, suspect, now);
  std::vector<sched::DetachedRequest> left = pipeline.scheduler->DetachAll(now);
  const PipelineRequests here = pipeline.requests;
  ClosePipeline(id);
  EndMigrationsOf(id, now);
  for (sched::DetachedRequest& detached : left) {
    const RequestId request = detached.request.id;
    if (!here.contains(request)) continue;  // it is moving here and still runs elsewhere
    ++counters_.replays;
    MoveFailed(request, false);
    requests_.PipelineEnded(request, end, ran.contains(request), suspect);
    Requeue(request, std::move(detached.request), now);
    EndAfterDeaths(request, reason, now);
  }
  requests_.TryQueue();
}

void ControllerCore::ClosePipeline(PipelineId id) {
  const auto found = pipelines_.find(id);
  const std::vector<PipelineHop>* survive = recoverable_.SurvivingHops(id);
  for (const PipelineHop& hop : found->second.hops) {
    const bool kept =
        survive != nullptr &&
        std::ranges::find(*survive, hop.shards, &PipelineHop::shards) != survive->end();
    if (kept) continue;
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, millrace::ClosePipeline{id});
  }
  kv_pulls_.DropInto(id);
  turns_.Close(id, dirty_);
  dirty_.erase(id);
  closed_pipelines_ += found->second.scheduler->Stats().CountersOnly();
  pipelines_.erase(found);
  deployment_.Check();
  if (recoverable_.SurvivingHops(id) == nullptr) GiveUpKvIn(id);
}

void ControllerCore::Pump(Pipeline& pipeline, Time now) {
  if (turns_.MayStep(pipeline.id)) {
    while (const StepPlan* plan = pipeline.scheduler->Schedule(now, pipeline.pulls)) {
      pipeline.prefill.Submitted(*plan, now);
      for (WorkerId worker : pipeline.workers.front())
        Send(worker, PipelineStep{pipeline.id, *plan});
    }
    turns_.Stepped(pipeline.id, pipeline.scheduler->steps_in_flight() > 0, ask_again_);
  }
  preemptions_.clear();
  pipeline.scheduler->DrainPreemptions(preemptions_);
  for (const sched::PreemptionRecord& p : preemptions_) MR_LOG(info, "{}", p.Describe());
  StartPulls(pipeline, now);
}

}  // namespace millrace::cluster
