#include "tests/fault/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "stage/testing/hash_grammar.h"

namespace millrace::sim::fault {
namespace {

constexpr Duration kDialAgain = Duration::Millis(100);
constexpr Duration kPipelineStartTime = Duration::Micros(300);

size_t BytesOf(const PeerMessage& message) {
  const auto* step = std::get_if<PipelineStep>(&message);
  return 64 + (step ? step->plan->tokens.size() * 4 + step->plan->sequences.size() * 32 : 0);
}

}  // namespace

Worker::Worker(WorkerOptions options, World& world)
    : options_(std::move(options)), world_(world), core_(options_.core) {}

void Worker::Start() { Dial(); }

void Worker::StandStill(Duration lasts) {
  still_until_ = std::max(still_until_, world_.now() + lasts);
  world_.Timer(options_.place, still_until_ - world_.now(), TimerKind::kMoves, 0);
}

Heartbeat Worker::MakeHeartbeat() {
  Heartbeat beat = core_.MakeHeartbeat(world_.now());
  if (woken_ && !batch_) beat.still_ms = (world_.now() - *woken_).ns / 1'000'000;
  beat.waits_for_ranks = batch_ && RanksNeeded() > 1 && !met_ && !still();
  return beat;
}

void Worker::Dial() {
  if (exited_ || session_) return;
  if (still()) return world_.Timer(options_.place, kDialAgain, TimerKind::kDial, 0);
  session_ = world_.network().Connect(options_.place, 0, Channel::kSession, world_.now());
  heartbeat_ = world_.network().Connect(options_.place, 0, Channel::kHeartbeat, world_.now());
  ++sessions_;
  core_.SessionUp(world_.now());
  Settle();
  world_.Timer(options_.place, core_.heartbeat_every(), TimerKind::kHeartbeat, sessions_);
}

void Worker::LoseSession() {
  if (!session_) return;
  world_.network().Close(*session_, options_.place, world_.now());
  world_.network().Close(*heartbeat_, options_.place, world_.now());
  session_.reset();
  heartbeat_.reset();
  core_.SessionDown(world_.now());
  const Duration wait = kDialAgain + Duration::Nanos(world_.rng().Between(0, 2 * kDialAgain.ns));
  if (!exited_) world_.Timer(options_.place, wait, TimerKind::kDial, 0);
  Settle();
}

void Worker::Deliver(Delivery delivery) {
  if (exited_) return;
  if (!delivery.payload) return OnGone(delivery);
  const Time now = world_.now();
  if (auto* down = std::get_if<ToWorker>(&*delivery.payload)) {
    if (delivery.connection != session_) return;
    core_.FromController(std::move(*down), now);
  } else if (auto* peer = std::get_if<PeerMessage>(&*delivery.payload)) {
    core_.FromPeer(std::move(*peer), now);
  } else if (auto* activations = std::get_if<Rows>(&*delivery.payload)) {
    core_.ActivationsArrived(activations->pipeline, activations->step,
                             std::move(activations->activations));
  } else if (auto* ask = std::get_if<PullAsk>(&*delivery.payload)) {
    OnAsk(delivery.connection, *ask);
  } else if (auto* answer = std::get_if<PullAnswer>(&*delivery.payload)) {
    OnAnswer(*answer);
  }
  Settle();
}

void Worker::OnGone(const Delivery& delivery) {
  if (session_ == delivery.connection || heartbeat_ == delivery.connection) return LoseSession();
  const auto found = peer_of_.find(delivery.connection);
  if (found == peer_of_.end()) return;
  const PeerKey key = found->second;
  peer_of_.erase(found);
  peers_.erase(key);
  if (key.channel == Channel::kBulk) {
    SourceLost(delivery.connection);
  } else {
    core_.PeerLost(key.incarnation, Unavailable("the peer's connection is gone"));
  }
  Settle();
}

void Worker::OnTimer(TimerKind kind, uint64_t x) {
  if (exited_) return;
  switch (kind) {
    case TimerKind::kDial: return Dial();
    case TimerKind::kHeartbeat:
      if (x != sessions_ || !session_) return;
      world_.network().Send(*heartbeat_, options_.place, MakeHeartbeat(), 48, world_.now());
      return world_.Timer(options_.place, core_.heartbeat_every(), TimerKind::kHeartbeat, x);
    case TimerKind::kLoaded: {
      const ShardId id(x);
      const auto load = loads_.find(id);
      if (load == loads_.end()) return;
      const LoadShard& what = load->second;
      if (!HasRoomFor(what)) {
        loads_.erase(load);
        if (world_.defect() == Defect::kSilentLoad) return;
        core_.LoadEnded({.shard = id, .status = ResourceExhausted("no memory for more weights")},
                        {});
        return Settle();
      }
      const cluster::HeadRange heads = cluster::KvHeadsOf(what.rank, options_.model.heads);
      stages_[id] = std::make_shared<stage::HashStage>(options_.model, what.layers,
                                                       std::pair(heads.first, heads.end));
      keepers_[id] = std::make_shared<stage::ActivationCachingStage>(stages_[id]);
      core_.LoadEnded({.shard = id,
                       .weight_bytes = what.layers.size() * 1000,
                       .kv_bytes_per_token_layer = 8,
                       .kv_bytes = options_.memory_tokens * 8},
                      stages_.at(id)->limits());
      return Settle();
    }
    case TimerKind::kMoves:
      if (still()) return;
      woken_.reset();
      return Settle();
    case TimerKind::kPipelineStarted:
      if (still()) return world_.Timer(options_.place, still_until_ - world_.now(), kind, x);
      core_.PipelineStarted(PipelineId(x), OkStatus());
      return Settle();
    case TimerKind::kBatchDone:
    case TimerKind::kCollectiveDeadline:
      if (!batch_ || x != batch_number_) return;
      if (still()) return world_.Timer(options_.place, still_until_ - world_.now(), kind, x);
      return OnBatchTimer(kind);
    case TimerKind::kPull:
      if (const auto pull = pulls_.find(TransferId(x)); pull != pulls_.end()) {
        pull->second.timer.reset();
      }
      Advance(TransferId(x));
      return Settle();
    default: return;
  }
}

void Worker::SetNotice(std::optional<MachineNotice> notice) {
  if (exited_) return;
  core_.SetNotice(notice, world_.now());
  Settle();
}

void Worker::Settle() {
  for (;;) {
    actions_.clear();
    core_.TakeActions(actions_);
    if (actions_.empty()) {
      if (still() && !woken_) woken_ = world_.now();
      if (batch_ || exited_ || still()) return;
      batch_ = core_.NextBatch(world_.now());
      if (batch_) {
        StartBatch();
        continue;
      }
      core_.TakeActions(actions_);
      if (actions_.empty()) return;
    }
    std::vector<cluster::WorkerAction> actions = std::exchange(actions_, {});
    for (cluster::WorkerAction& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }
}

void Worker::Do(cluster::SendUp& action) {
  const auto* broken = std::get_if<PipelineBroken>(&action.message);
  if (broken && core_.counters().refused_plans > 0) {
    world_.Broken(Invariant::kPlansRun, broken->reason.ToString());
  }
  if (!session_) return;
  world_.network().Send(*session_, options_.place, std::move(action.message), 128, world_.now());
}

void Worker::SendTo(const WorkerAddress& to, Channel channel, Payload payload, size_t bytes) {
  const PeerKey key{to.incarnation, channel};
  if (const Worker* peer = world_.Find(to.incarnation);
      peer != nullptr && peer->bit_class() != bit_class()) {
    world_.Broken(Invariant::kOneClass,
                  fmt::format("worker {} has a message for {}, which is of another class", name(),
                              peer->name()));
  }
  auto found = peers_.find(key);
  if (found == peers_.end()) {
    const NetworkConnectionId id =
        world_.network().Connect(options_.place, std::stoi(to.control), channel, world_.now());
    world_.MeantFor(id, to.incarnation);
    found = peers_.emplace(key, id).first;
    peer_of_.emplace(id, key);
  }
  world_.network().Send(found->second, options_.place, std::move(payload), bytes, world_.now());
}

void Worker::Do(cluster::SendToPeer& action) {
  const size_t bytes = BytesOf(action.message);
  SendTo(action.to, Channel::kPeer, std::move(action.message), bytes);
}

void Worker::Do(cluster::SendActivations& action) {
  const size_t bytes = 64 + action.activations->size();
  SendTo(action.to, action.decode ? Channel::kDecodeRows : Channel::kPrefillRows,
         Rows{action.pipeline, action.step, std::move(action.activations)}, bytes);
}

void Worker::Do(cluster::StartLoad& action) {
  const ShardId id = action.load.shard;
  loads_[id] = std::move(action.load);
  const Duration time = action.same_as ? Duration::Millis(2) : options_.load_time;
  world_.Timer(options_.place, time, TimerKind::kLoaded, id.value());
}

bool Worker::HasRoomFor(const LoadShard& load) const {
  if (!options_.tight_memory || core_.pipelines() == 0) return true;
  return std::ranges::any_of(stages_, [&](const auto& entry) {
    const LoadShard& here = loads_.at(entry.first);
    return here.layers == load.layers && here.rank == load.rank;
  });
}

void Worker::Do(cluster::DropShard& action) {
  if (batch_) {
    drops_.push_back(action);
    return;
  }
  loads_.erase(action.shard);
  stages_.erase(action.shard);
  keepers_.erase(action.shard);
  broken_.erase(action.shard);
}

// Fails the other ranks' next call, and a waiting one.
void Worker::Do(cluster::AbortGroup& action) {
  const LoadShard& mine = loads_.at(action.shard);
  for (const WorkerAddress& address : mine.ranks) {
    Worker* const rank = world_.Find(address.incarnation);
    if (rank == nullptr) continue;
    for (const auto& [id, load] : rank->loads_) {
      if (load.group != mine.group) continue;
      rank->broken_.insert(id);
      if (!rank->batch_ || rank->batch_->shard != id) continue;
      world_.Timer(rank->place(), {}, TimerKind::kCollectiveDeadline, rank->batch_number_);
    }
  }
}

void Worker::Do(cluster::UseTokenTable&) {
  grammars_ = std::make_shared<stage::HashGrammars>(options_.model.vocab_size);
}

void Worker::Do(cluster::StartPipeline& action) {
  const auto stage = keepers_.find(action.shard);
  MR_CHECK(stage != keepers_.end()) << "the shard of a pipeline is not loaded";
  action.options.grammars = grammars_;
  const Status opened = stage->second->OpenPipeline(action.pipeline, action.options);
  if (!opened.ok()) return core_.PipelineStarted(action.pipeline, opened);
  world_.Timer(options_.place, kPipelineStartTime, TimerKind::kPipelineStarted,
               action.pipeline.value());
}

void Worker::Do(cluster::DropPipeline& action) {
  std::vector<TransferId> ended;
  for (auto& [id, pull] : pulls_) {
    if (pull.core.pipeline() != action.pipeline) continue;
    pull.core.Cancel(Cancelled("the pipeline was closed"));
    ended.push_back(id);
  }
  for (const TransferId id : ended) EndPull(id);
  kv_.ClosePipeline(action.pipeline);
  const bool runs = batch_ && std::ranges::count(batch_->parts, action.pipeline,
                                                 &cluster::ReadyBatch::Part::pipeline) > 0;
  if (runs) {
    drops_.push_back(action);
    return;
  }
  const auto stage = keepers_.find(action.shard);
  if (stage == keepers_.end()) return;
  stage->second->ClosePipeline(action.pipeline);
  if (world_.defect() != Defect::kGhostWrite) return;
  const stage::KvBox box{{0, 0}, 0, 0, 0, 0};
  (void)stages_.at(action.shard)->WriteKv(action.pipeline, box, {}, {});
}

void Worker::Do(cluster::ReturnMemory& action) {
  const auto stage = keepers_.find(action.shard);
  if (stage != keepers_.end()) stage->second->ReturnBlocks(action.pipeline, action.blocks);
}

void Worker::Do(cluster::EndSession& action) {
  if (action.for_good) exited_ = true;
  LoseSession();
}

size_t Worker::pipelines_open() const {
  size_t pipelines = 0;
  for (const auto& [id, stage] : stages_) pipelines += static_cast<size_t>(stage->num_pipelines());
  return pipelines;
}

}  // namespace millrace::sim::fault
