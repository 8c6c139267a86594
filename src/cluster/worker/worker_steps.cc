// The steps of WorkerCore. A step's plan and activations arrive in either order. Ready steps become
// one batch. The plan is forwarded to the next hop before the batch runs, the activations after it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cluster/worker/worker_core.h"

namespace millrace::cluster {
namespace {

// Whether the step only decodes, one token for each sequence.
bool IsDecode(const StepPlan& plan) {
  return std::ranges::all_of(plan.sequences,
                             [](const SequenceStep& s) { return s.num_tokens == 1; });
}

}  // namespace

stage::StagePart ReadyBatch::Part::AsStagePart() const {
  return {.pipeline = pipeline,
          .plan = plan.get(),
          .sequences = sequences,
          .input = input ? std::span<const std::byte>(*input) : std::span<const std::byte>(),
          .output = {},
          .result = {}};
}

Status WorkerCore::CheckStep(Pipeline& pipeline, const StepPlan& plan) {
  if (pipeline.steps.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    return ResourceExhausted(
        fmt::format("{} steps are waiting, which is the limit", pipeline.steps.size()));
  }
  // A missing step would leave wrong block tables.
  if (pipeline.newest && plan.id.value() != pipeline.newest->value() + 1) {
    return InvalidArgument(fmt::format("step {} arrived after step {}: a step is missing",
                                       plan.id.value(), pipeline.newest->value()));
  }
  Status sound = pipeline.checker.Check(plan);
  if (!sound.ok()) ++counters_.refused_plans;
  return sound;
}

void WorkerCore::On(PipelineStep& message, Time) {
  const auto found = pipelines_.find(message.pipeline);
  if (found == pipelines_.end() || found->second.broken) {
    ++counters_.stale_steps;
    return;
  }
  Pipeline& pipeline = found->second;
  if (pipeline.newest && message.plan->id <= *pipeline.newest) {  // a repetition
    ++counters_.stale_steps;
    return;
  }
  if (const Status ok = CheckStep(pipeline, *message.plan); !ok.ok()) {
    ++counters_.refused;
    return Break(message.pipeline, pipeline, ok, std::nullopt);
  }
  pipeline.newest = message.plan->id;
  if (message.returns > pipeline.returns) pipeline.early.emplace(message.plan->id, message.returns);
  Forward(pipeline, message);
  pipeline.steps.push_back(std::move(message.plan));
  PassTest(message.pipeline, pipeline);
}

void WorkerCore::Forward(const Pipeline& pipeline, const PipelineStep& step) {
  if (pipeline.last() || pipeline.open.rank != 0) return;
  for (const WorkerAddress& next :
       pipeline.open.hops[static_cast<size_t>(pipeline.open.hop) + 1].ranks) {
    Emit(SendToPeer{next, step});
  }
}

// Also of a broken pipeline: its memory is wanted elsewhere while requests fetch their KV from it.
void WorkerCore::On(ReturnBlocks& message, Time) {
  const auto found = pipelines_.find(message.pipeline);
  if (found == pipelines_.end() || message.number <= found->second.returns) {
    ++counters_.stale_steps;  // for a closed pipeline, or a repetition
    return;
  }
  Pipeline& pipeline = found->second;
  const bool valid = std::ranges::all_of(
      message.blocks, [&](BlockIndex b) { return b >= 0 && b < pipeline.open.num_blocks; });
  if (!valid || message.number != pipeline.returns + 1) {
    ++counters_.refused;
    return Break(message.pipeline, pipeline, InvalidArgument("unexpected blocks are returned"),
                 std::nullopt);
  }
  pipeline.returns = message.number;
  Emit(ReturnMemory{pipeline.shard, message.pipeline, std::move(message.blocks)});
}

void WorkerCore::ActivationsArrived(PipelineId id, StepId step, ActivationBytes activations) {
  const auto found = pipelines_.find(id);
  if (found == pipelines_.end() || found->second.broken) {
    ++counters_.stale_activations;
    return;
  }
  Pipeline& pipeline = found->second;
  if (pipeline.taken && step <= *pipeline.taken) {  // a repetition
    ++counters_.stale_activations;
    return;
  }
  if (pipeline.first() || pipeline.inputs.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    ++counters_.refused;
    return Break(id, pipeline, InvalidArgument("unexpected activations"), std::nullopt);
  }
  pipeline.inputs.try_emplace(step, std::move(activations));
  PassTest(id, pipeline);
}

void WorkerCore::On(BatchOrder& message, Time) {
  WorkerShards::Shard* shard = shards_.Find(message.shard);
  if (shard == nullptr || shard->load.rank.rank == 0) {
    ++counters_.stale_orders;
    return;
  }
  if (shard->orders.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    ++counters_.refused;
    return;
  }
  shard->orders.push_back(std::move(message));
}

bool WorkerCore::HasNext(const Pipeline& pipeline) const {
  if (!pipeline.started || pipeline.failed || pipeline.steps.empty()) return false;
  const auto early = pipeline.early.find(pipeline.steps.front()->id);
  if (early != pipeline.early.end() && early->second > pipeline.returns) return false;
  return pipeline.first() || pipeline.inputs.contains(pipeline.steps.front()->id);
}

std::optional<ReadyBatch> WorkerCore::NextBatch(Time now) {
  MR_CHECK(!running_) << "one batch at a time";
  for (const ShardId id : shards_.ByTurn()) {
    WorkerShards::Shard& shard = *shards_.Find(id);
    ReadyBatch batch;
    batch.shard = id;
    if (shard.load.rank.rank == 0) {
      FillByArrival(id, shard, batch);
    } else if (!FillByOrder(id, shard, batch)) {
      continue;
    }
    if (batch.parts.empty()) continue;
    shard.turn = ++turns_;
    running_ = batch;
    running_since_ = now;
    return batch;
  }
  return std::nullopt;
}

// Takes ready pipelines, the one that has waited longest first, as many as fit.
void WorkerCore::FillByArrival(ShardId id, const WorkerShards::Shard& shard, ReadyBatch& batch) {
  std::vector<std::pair<uint64_t, PipelineId>> ready;
  for (const auto& [pipeline_id, pipeline] : pipelines_) {
    if (pipeline.shard == id && !pipeline.broken && HasNext(pipeline))
      ready.emplace_back(pipeline.turn, pipeline_id);
  }
  std::ranges::sort(ready);
  int64_t tokens = 0;
  for (const auto& [turn, pipeline_id] : ready) {
    Pipeline& pipeline = pipelines_.at(pipeline_id);
    const int64_t more = std::ssize(pipeline.steps.front()->tokens);
    if (!batch.parts.empty() && tokens + more > shard.load.max_batched_tokens) break;
    tokens += more;
    Take(pipeline_id, pipeline, batch);
  }
  if (batch.parts.empty()) return;
  for (size_t rank = 1; rank < shard.load.ranks.size(); ++rank) {
    BatchOrder order;
    for (const ReadyBatch::Part& part : batch.parts) {
      const auto& hop = pipelines_.at(part.pipeline).hop();
      order.shard = hop.shards[rank];
      order.parts.push_back({part.pipeline, part.plan->id});
    }
    Emit(SendToPeer{shard.load.ranks[rank], std::move(order)});
  }
}

// False: some step of rank 0's next batch is not here yet. A batch that rank 0 has started runs
// here too, even if the loss of a peer has broken the pipeline in the meantime, because this
// stage's KV is recoverable. An order can never run if its pipeline is closed, or if the pipeline
// is broken and its next step is not ready. Then the group is aborted, or rank 0 would wait for
// this rank until its deadline.
bool WorkerCore::FillByOrder(ShardId id, WorkerShards::Shard& shard, ReadyBatch& batch) {
  while (!shard.orders.empty()) {
    const BatchOrder& order = shard.orders.front();
    const bool gone = std::ranges::any_of(order.parts, [&](const BatchOrder::Part& part) {
      const auto pipeline = pipelines_.find(part.pipeline);
      return pipeline == pipelines_.end() ||
             (pipeline->second.broken && !HasNext(pipeline->second));
    });
    if (gone) {
      ++counters_.stale_orders;
      shard.orders.pop_front();
      Emit(AbortGroup{id, "a pipeline was closed or broken while its batch ran"});
      continue;
    }
    const bool ready = std::ranges::all_of(order.parts, [&](const BatchOrder::Part& part) {
      const Pipeline& pipeline = pipelines_.at(part.pipeline);
      return HasNext(pipeline) && pipeline.steps.front()->id == part.step;
    });
    if (!ready) return false;
    for (const BatchOrder::Part& part : order.parts)
      Take(part.pipeline, pipelines_.at(part.pipeline), batch);
    shard.orders.pop_front();
    return true;
  }
  return false;
}

void WorkerCore::Take(PipelineId id, Pipeline& pipeline, ReadyBatch& batch) {
  ReadyBatch::Part& part = batch.parts.emplace_back();
  part.pipeline = id;
  part.plan = std::move(pipeline.steps.front());
  pipeline.steps.pop_front();
  pipeline.taken = part.plan->id;
  part.sequences = pipeline.tables->Advance(*part.plan);
  part.tables = pipeline.tables;
  pipeline.early.erase(part.plan->id);
  pipeline.turn = ++turns_;
  if (pipeline.first()) return;
  auto input = pipeline.inputs.extract(part.plan->id);
  part.input = std::move(input.mapped());
}

// A test step goes the way of the others, and waits for no batch.
void WorkerCore::PassTest(PipelineId id, Pipeline& pipeline) {
  if (pipeline.steps.empty() || !pipeline.steps.front()->IsTest() || !HasNext(pipeline)) return;
  ReadyBatch alone;
  Take(id, pipeline, alone);
  PartOutput nothing;
  nothing.result.id = kTestStep;
  SendOutput(pipeline, alone.parts.front(), nothing);
}

void WorkerCore::BatchEnded(const Status& status, std::vector<PartOutput> outputs, Time now) {
  MR_CHECK(running_) << "no batch is running";
  const ReadyBatch batch = std::move(*running_);
  running_.reset();
  last_busy_ = now;
  ++counters_.batches;
  counters_.parts += batch.parts.size();
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    const auto found = pipelines_.find(batch.parts[i].pipeline);
    if (found == pipelines_.end()) continue;  // closed while it ran
    // After a failed step the pipeline runs no more steps, at any hop or rank.
    const Status& failed = status.ok() ? outputs[i].result.error : status;
    if (!failed.ok()) {
      Break(found->first, found->second, failed, std::nullopt);
    } else {
      SendOutput(found->second, batch.parts[i], outputs[i]);
    }
  }
}

void WorkerCore::SendOutput(const Pipeline& pipeline, const ReadyBatch::Part& part,
                            PartOutput& output) {
  if (pipeline.open.rank != 0) return;
  if (pipeline.last()) return Emit(SendUp{StepDone{part.pipeline, std::move(output.result)}});
  const auto activations =
      std::make_shared<const std::vector<std::byte>>(std::move(output.activations));
  const bool decode = IsDecode(*part.plan);
  for (const WorkerAddress& next :
       pipeline.open.hops[static_cast<size_t>(pipeline.open.hop) + 1].ranks) {
    Emit(SendActivations{next, part.pipeline, part.plan->id, decode, activations});
  }
}

}  // namespace millrace::cluster
