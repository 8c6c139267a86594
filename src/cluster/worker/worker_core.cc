// Sessions, shards, pipelines and transfers of WorkerCore. Steps are in worker_steps.cc.
#include "cluster/worker/worker_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace millrace::cluster {
namespace {

// Whether `blocks` are valid blocks of the pipeline and can hold `tokens` tokens from token 0.
bool BlocksHold(const OpenPipeline& pipeline, const std::vector<BlockIndex>& blocks, int tokens) {
  return tokens >= 0 && tokens <= std::ssize(blocks) * pipeline.block_size &&
         std::ranges::all_of(blocks,
                             [&](BlockIndex b) { return b >= 0 && b < pipeline.num_blocks; });
}

}  // namespace

WorkerCore::WorkerCore(WorkerCoreOptions options) : options_(std::move(options)) {}

void WorkerCore::SessionUp(Time) {
  Join join = options_.join;
  join.held = shards_.Held();
  Emit(SendUp{std::move(join)});
}

// The next controller replays the requests of these pipelines, so their KV is of no more use.
void WorkerCore::SessionDown(Time) {
  worker_.reset();
  while (!pipelines_.empty()) ErasePipeline(pipelines_.begin()->first);
  shards_.Orphan();
}

void WorkerCore::FromController(ToWorker message, Time now) {
  const bool greeting =
      std::holds_alternative<Welcome>(message) || std::holds_alternative<Refused>(message);
  if (!worker_ && !greeting) {
    ++counters_.refused;
    return;
  }
  std::visit([&](auto& m) { On(m, now); }, message);
}

void WorkerCore::FromPeer(PeerMessage message, Time now) {
  std::visit([&](auto& m) { On(m, now); }, message);
}

// A controller with an older term has been replaced but may not know it yet. Terms of two stores
// cannot be compared, and a store that was restored from a backup counts them again.
bool WorkerCore::IsOutdated(const Welcome& message, Time now) {
  const bool comparable = !message.store || !store_ || message.store == store_;
  if (!comparable || message.term >= term_) return false;
  if (!older_since_) older_since_ = now;
  if (now - *older_since_ < WorkerCoreOptions::kOlderTermLimit) return true;
  MR_LOG(
      warn,
      "no controller of term {} has come for {:.0f} s: following the one of term {}, whose store "
      "was probably restored from a backup",
      term_.value(), (now - *older_since_).seconds(), message.term.value());
  return false;
}

void WorkerCore::On(const Welcome& message, Time now) {
  if (IsOutdated(message, now)) {
    ++counters_.refused;
    Emit(EndSession{fmt::format("the controller of term {} was replaced by the one of term {}",
                                message.term.value(), term_.value())});
    return;
  }
  term_ = message.term;
  store_ = message.store;
  older_since_.reset();
  worker_ = message.worker;
  heartbeat_every_ = message.heartbeat_every;
  last_busy_ = now;  // layers are about to come
  takes_notices_ = message.protocol.newest >= kProtocolNotices;
  if (notice_) SayNotice(now);  // this controller may not know
  takes_profiles_ = message.protocol.newest >= kProtocolProfiles;
  if (profile_ && takes_profiles_) Emit(SendUp{*profile_});
}

// A later session names it, so that a controller with the same table does not send it again.
void WorkerCore::On(const TokenTable& message, Time) {
  options_.join.token_table = message.digest;
  Emit(UseTokenTable{message});
}

void WorkerCore::On(const Refused& message, Time) {
  Emit(EndSession{message.reason.message(), !message.retry});
}

// If the notice that this answers was withdrawn in the meantime, the worker joins again.
void WorkerCore::On(const Leave& message, Time) {
  left_on_notice_ = message.on_notice;
  const bool leaves = notice_ && notice_->hard;
  Emit(EndSession{message.reason, leaves || !message.on_notice});
}

void WorkerCore::On(LoadShard& message, Time) {
  if (shards_.Find(message.shard) != nullptr) return;
  // A load of other weights needs the memory of what earlier sessions left.
  if (!shards_.AnyHasPartOf(message)) DropOrphans();
  if (shards_.size() >= WorkerCoreOptions::kShardsMax) {
    Emit(SendUp{ShardLoaded{message.shard, ResourceExhausted(fmt::format(
                                               "this worker holds {} shards, and the limit is {}",
                                               shards_.size(), WorkerCoreOptions::kShardsMax))}});
    return;
  }
  StartLoad start{message, shards_.WithWeightsOf(message)};
  shards_.Add(std::move(message));
  Emit(std::move(start));
}

void WorkerCore::LoadEnded(const ShardLoaded& loaded, const stage::StageLimits& limits) {
  WorkerShards::Shard* shard = shards_.Find(loaded.shard);
  if (shard == nullptr) return Emit(DropShard{loaded.shard});  // unloaded in the meantime
  // The rest of what earlier sessions left takes the memory.
  if (loaded.status.code() == StatusCode::kResourceExhausted && !shard->orphan && orphans() > 0) {
    DropOrphans(true);
    return Emit(StartLoad{shard->load, std::nullopt});
  }
  const TensorRank rank = shard->load.rank;
  shard->loaded = loaded.status.ok();
  shard->limits = limits;
  if (!loaded.status.ok()) shards_.Erase(loaded.shard);
  Emit(SendUp{loaded});
  if (loaded.status.ok()) DropOrphans();
  // No source could serve the weights. A new session brings a current list of sources. A worker
  // with running pipelines keeps its session, because they would end with it.
  if (loaded.status.code() == StatusCode::kUnavailable && rank.size == 1 && pipelines_.empty()) {
    Emit(EndSession{loaded.status.message()});
  }
}

void WorkerCore::DropOrphans(bool used_too) {
  for (const ShardId shard : shards_.EraseOrphans(used_too)) Emit(DropShard{shard});
}

void WorkerCore::LoadProgress(const ShardProgress& progress) {
  if (shards_.Find(progress.shard) != nullptr) Emit(SendUp{progress});
}

void WorkerCore::On(const UnloadShard& message, Time) {
  const WorkerShards::Shard* shard = shards_.Find(message.shard);
  if (shard == nullptr) return;
  std::vector<PipelineId> gone;
  for (const auto& [id, pipeline] : pipelines_) {
    if (pipeline.shard == message.shard) gone.push_back(id);
  }
  for (PipelineId id : gone) ErasePipeline(id);
  const bool loaded = shard->loaded;
  shards_.Erase(message.shard);
  if (loaded) Emit(DropShard{message.shard});
}

Status WorkerCore::CheckOpen(const OpenPipeline& message) const {
  if (pipelines_.size() >= WorkerCoreOptions::kPipelinesMax) {
    return ResourceExhausted(
        fmt::format("{} pipelines are open, which is the limit", pipelines_.size()));
  }
  if (message.hop < 0 || message.hop >= std::ssize(message.hops)) {
    return InvalidArgument(fmt::format("hop {} does not exist: the route has {} hops", message.hop,
                                       message.hops.size()));
  }
  const PipelineHop& hop = message.hops[static_cast<size_t>(message.hop)];
  if (message.rank < 0 || message.rank >= std::ssize(hop.ranks) ||
      hop.shards.size() != hop.ranks.size()) {
    return InvalidArgument(fmt::format("rank {} does not exist: the hop has {} ranks", message.rank,
                                       hop.ranks.size()));
  }
  const WorkerShards::Shard* shard = shards_.Find(hop.shards[static_cast<size_t>(message.rank)]);
  if (shard == nullptr || !shard->loaded) {
    return FailedPrecondition("the pipeline's layers are not loaded on this worker");
  }
  const LayerRange held = shard->load.layers;
  if (hop.layers.begin < held.begin || hop.layers.end > held.end || hop.layers.size() < 1) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within [{}, {})", hop.layers.begin,
                                       hop.layers.end, held.begin, held.end));
  }
  if (message.block_size < 1 || message.num_blocks < 1 || message.num_host_blocks < 0) {
    return InvalidArgument("the pipeline has no blocks");
  }
  return OkStatus();
}

void WorkerCore::On(OpenPipeline& message, Time now) {
  last_busy_ = now;
  const PipelineId id = message.pipeline;
  if (pipelines_.contains(id)) return;
  if (Status ok = CheckOpen(message); !ok.ok()) {
    ++counters_.refused;
    return Emit(SendUp{PipelineOpened{id, std::move(ok)}});
  }
  const StepLimits limits = LimitsOf(message);
  const Pipeline& pipeline = pipelines_.try_emplace(id, std::move(message), limits).first->second;
  Emit(StartPipeline{pipeline.shard,
                     id,
                     {.layers = pipeline.hop().layers,
                      .block_size = pipeline.open.block_size,
                      .num_blocks = pipeline.open.num_blocks,
                      .num_host_blocks = pipeline.open.num_host_blocks,
                      .first = pipeline.first(),
                      .last = pipeline.last(),
                      .eos_token_ids = pipeline.open.eos_token_ids,
                      .cache_activations_at = pipeline.open.cache_activations_at,
                      .shares_memory = pipeline.open.shares_memory}});
}

// REQUIRES: CheckOpen has passed.
StepLimits WorkerCore::LimitsOf(const OpenPipeline& message) const {
  const PipelineHop& hop = message.hops[static_cast<size_t>(message.hop)];
  const stage::StageLimits& stage =
      shards_.Find(hop.shards[static_cast<size_t>(message.rank)])->limits;
  return {.block_size = message.block_size,
          .num_blocks = message.num_blocks,
          .num_host_blocks = message.num_host_blocks,
          .max_batched_tokens = std::min(message.max_batched_tokens, stage.max_batched_tokens),
          .max_model_len = stage.max_model_len,
          .vocab_size = stage.vocab_size};
}

void WorkerCore::PipelineStarted(PipelineId id, const Status& status) {
  const auto found = pipelines_.find(id);
  if (found == pipelines_.end()) return;
  Emit(SendUp{PipelineOpened{id, status}});
  if (!status.ok()) {
    pipelines_.erase(found);
    return;
  }
  found->second.started = true;
  PassTest(id, found->second);
}

void WorkerCore::On(const ClosePipeline& message, Time) {
  if (pipelines_.contains(message.pipeline)) ErasePipeline(message.pipeline);
}

void WorkerCore::ErasePipeline(PipelineId id) {
  const auto found = pipelines_.find(id);
  Emit(DropPipeline{found->second.shard, id});
  pipelines_.erase(found);
  std::erase_if(pulls_, [&](const auto& pull) { return pull.second == id; });
}

void WorkerCore::On(const ExportKv& message, Time) {
  const auto found = pipelines_.find(message.handle.pipeline);
  if (found == pipelines_.end()) {
    ++counters_.stale_steps;
    return;
  }
  if (!BlocksHold(found->second.open, message.blocks, message.tokens)) {
    ++counters_.refused;
    return;
  }
  Emit(Export{found->second.shard, found->second.hop().layers, message});
}

void WorkerCore::On(const ReleaseKv& message, Time) { Emit(Unexport{message.handle}); }

void WorkerCore::On(PullKv& message, Time) {
  const TransferId id = message.transfer;
  const auto found = pipelines_.find(message.pipeline);
  if (found == pipelines_.end()) {
    return Emit(
        SendUp{PullDone{id, FailedPrecondition("the pipeline is not open on this worker")}});
  }
  if (message.first_token < 0 || message.first_token > message.end_token ||
      !BlocksHold(found->second.open, message.blocks, message.end_token)) {
    ++counters_.refused;
    return Emit(SendUp{PullDone{id, InvalidArgument("the blocks do not hold the tokens")}});
  }
  const LayerRange here = found->second.hop().layers;
  const LayerRange layers = message.layers.value_or(here);
  if (!here.Contains(layers)) {
    ++counters_.refused;
    return Emit(
        SendUp{PullDone{id, InvalidArgument("the pipeline does not have these layers here")}});
  }
  pulls_.emplace(id, message.pipeline);
  Emit(StartPull{found->second.shard, layers, std::move(message)});
}

void WorkerCore::PullEnded(const PullDone& done) {
  if (pulls_.erase(done.transfer) > 0) Emit(SendUp{done});
}

// A probe would share the processor and the link with the steps, so it would disturb both.
void WorkerCore::On(const ProbeLink& message, Time now) {
  if (IdleFor(now).ns > 0) return Emit(StartProbe{message});
  Emit(SendUp{LinkProbed{message.probe, Unavailable("this worker has steps to compute")}});
}

void WorkerCore::ProbeEnded(const LinkProbed& probed) {
  if (worker_ && takes_profiles_) Emit(SendUp{probed});
}

void WorkerCore::SetProfile(WorkerProfile profile) {
  profile_ = std::move(profile);
  if (worker_ && takes_profiles_) Emit(SendUp{*profile_});
}

Duration WorkerCore::IdleFor(Time now) const {
  const auto waits = [](const auto& entry) { return !entry.second.steps.empty(); };
  if (running_ || std::ranges::any_of(pipelines_, waits) || shards_.AnyLoads()) return {};
  return now - last_busy_;
}

void WorkerCore::PeerLost(Incarnation peer, const Status& reason) {
  for (auto& [id, pipeline] : pipelines_) {
    for (const PipelineHop& hop : pipeline.open.hops) {
      const auto rank = std::ranges::find(hop.ranks, peer, &WorkerAddress::incarnation);
      if (rank != hop.ranks.end()) Break(id, pipeline, reason, rank->worker);
    }
  }
}

void WorkerCore::Break(PipelineId id, Pipeline& pipeline, const Status& reason,
                       std::optional<WorkerId> suspect) {
  pipeline.failed = pipeline.failed || !suspect;
  if (std::exchange(pipeline.broken, true)) return;
  Emit(SendUp{PipelineBroken{id, reason, suspect}});
}

void WorkerCore::SetNotice(std::optional<MachineNotice> notice, Time now) {
  const bool withdrawn = notice_ && (!notice || (notice_->hard && !notice->hard));
  notice_ = notice;
  if (!worker_) return;  // On(Welcome) says it
  if (withdrawn && takes_notices_) Emit(SendUp{Staying{}});
  if (withdrawn && !takes_notices_) {
    MR_LOG(warn,
           "this controller is of an earlier release, which lets a worker go even if its "
           "notice was withdrawn");
  }
  if (notice_) SayNotice(now);
}

void WorkerCore::SayNotice(Time now) {
  std::optional<Duration> in;
  if (notice_->deadline) in = std::max(Duration(), *notice_->deadline - now);
  if (notice_->hard) {
    Emit(SendUp{Leaving{in, notice_->origin}});
  } else if (takes_notices_) {
    Emit(SendUp{MayLeave{in, notice_->origin}});
  }
}

Heartbeat WorkerCore::MakeHeartbeat(Time now) {
  Heartbeat beat{.incarnation = options_.join.address.incarnation,
                 .sequence = ++heartbeats_,
                 .steps_done = counters_.batches};
  // At least 1 while a batch runs, because 0 means idle.
  if (running_) beat.batch_age_ms = std::max<int64_t>(1, (now - running_since_).ns / 1'000'000);
  for (const auto& [id, pipeline] : pipelines_) beat.queued_steps += std::ssize(pipeline.steps);
  return beat;
}

void WorkerCore::TakeActions(std::vector<WorkerAction>& actions) {
  std::ranges::move(actions_, std::back_inserter(actions));
  actions_.clear();
}

}  // namespace millrace::cluster
