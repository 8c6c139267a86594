#include "cluster/control/transfers/transfers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// If more requests than this migrate at once, their KV is not copied in the background, because the
// KV of all of them is held until they have moved.
constexpr size_t kBackgroundMovesMax = 4;
constexpr double kPullWeight = 0.1;  // of the newest pull in the moving average

}  // namespace

Transfers::Transfers(TransfersOptions options, const Membership& members,
                     const Deployment& deployment, Pipelines& pipelines, Requests& requests,
                     KvMemory& memory, IdSource& ids, Outbox& outbox)
    : options_(options),
      members_(members),
      deployment_(deployment),
      pipelines_(pipelines),
      requests_(requests),
      memory_(memory),
      pulls_({options.num_layers, options.hold_limit, options.secret}, ids, outbox),
      kv_(outbox),
      migrations_({options.migrations_max, options.block_size, options.hold_limit}) {}

sched::Scheduler* Transfers::SchedulerOf(PipelineId id) const {
  Pipeline* pipeline = pipelines_.Find(id);
  return pipeline == nullptr ? nullptr : pipeline->scheduler.get();
}

// The hops of an open or lost pipeline that may still be readable.
std::vector<PipelineHop> Transfers::ReadableHops(PipelineId id) const {
  const Pipeline* runs = pipelines_.Find(id);
  const std::vector<PipelineHop>* all = runs ? &runs->hops : kv_.SurvivingHops(id);
  std::vector<PipelineHop> readable;
  if (all == nullptr) return readable;
  std::ranges::copy_if(*all, std::back_inserter(readable),
                       [&](const PipelineHop& hop) { return StillThere(hop); });
  return readable;
}

bool Transfers::StillThere(const PipelineHop& hop) const {
  return std::ranges::all_of(hop.shards,
                             [&](ShardId shard) { return deployment_.HasShard(shard); });
}

bool Transfers::IsLeaving(const Pipeline& pipeline) const {
  return std::ranges::any_of(
      members_.all(), [&](const auto& w) { return w.second.draining && pipeline.Uses(w.first); });
}

// A hop normally pulls the activations that leave it, so that if the next hop is lost later this
// one computes nothing again. From a retiring pipeline (null: a lost one) they are not pulled over
// the network, because a change of plan should move little and usually splits the layers elsewhere.
// The same applies to a pipeline with a draining worker.
PulledActivations Transfers::ActivationsFrom(const Pipeline* pipeline) const {
  const bool any = pipeline == nullptr || (!pipeline->retiring && !IsLeaving(*pipeline));
  return any ? PulledActivations::kAny : PulledActivations::kLocal;
}

void Transfers::HandOver(Pipeline& from, const sched::NewRequest& request) {
  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(request.id);
  std::vector<sched::SequenceKv> kv(request.resumed.size());
  const auto leader = std::ranges::find(request.resumed, false, &sched::ResumedSequence::finished);
  // It computes its last known token itself.
  const auto known = std::ssize(*request.prompt) + std::ssize(leader->output);
  const auto tokens = static_cast<int>(std::min(std::ssize(*request.prompt), known - 1));
  sched::SequenceKv& prompt = kv[static_cast<size_t>(leader - request.resumed.begin())];
  prompt = {tokens, held};
  prompt.blocks.resize(
      static_cast<size_t>((tokens + options_.block_size - 1) / options_.block_size));
  kv_.Leave(request.id, {.pipeline = from.id,
                         .bits = from.bits,
                         .kv = std::move(kv),
                         .held = std::move(held),
                         .moves = true,
                         .hands_over = true});
  ++counters_.moves;
  ++counters_.hand_overs;
}

const Route* Transfers::KvAt(RequestId id) const {
  const RecoverableKv* left = kv_.Find(id);
  const Pipeline* pipeline = left == nullptr ? nullptr : pipelines_.Find(left->pipeline);
  const bool hands_over = pipeline != nullptr && pipeline->role == StageRole::kPrefill;
  return hands_over && !pipeline->retiring ? &pipeline->route : nullptr;
}

Status Transfers::Migrate(RequestId id, Pipeline& from, Pipeline& to, Time now) {
  if (from.role == StageRole::kPrefill) {
    return FailedPrecondition(
        "the prompt is still being computed; the request is handed over with its first token");
  }
  if (from.bits != to.bits) {
    return FailedPrecondition(
        "its workers compute other bits, and KV stays in one numeric class; choose a worker of the "
        "class that runs the request");
  }
  if (to.protocol < ProtocolFor(*requests_.at(id).spec.params)) {
    return FailedPrecondition(
        "its workers are of a version that lacks what the request asks for; choose newer ones");
  }
  if (!memory_.Reserve(to.id, id, requests_.EstimatedBlocks(requests_.at(id)))) {
    return ResourceExhausted("its workers lack KV memory at the moment; retry later");
  }
  if (Status started = migrations_.Start(id, from.id, *from.scheduler, to.id, *to.scheduler, now);
      !started.ok()) {
    memory_.Release(to.id, id);
    return started;
  }
  pipelines_.Touch(to.id);
  ++counters_.moves;
  return OkStatus();
}

void Transfers::StartPulls(Pipeline& to, Time now) {
  if (!to.pulls.empty()) copy_rate_.Passed(!pulls_.idle(), now);
  for (const sched::KvPull& pull : std::exchange(to.pulls, {})) {
    const Migrations::Migration* migration = migrations_.Find(pull.id);
    if (migration != nullptr && migration->to == to.id) {
      if (StartRound(to, pull)) continue;
      to.scheduler->KvArrived(pull.id, false, now);
      Abandon(pull.id, now);
    } else if (!StartFetch(to, pull, /*doubtful=*/false)) {
      FetchFailed(to, pull.id, now);
    }
  }
}

// False: the source no longer has that much KV.
bool Transfers::StartRound(Pipeline& to, const sched::KvPull& pull) {
  const Pipeline& from = pipelines_.at(migrations_.Find(pull.id)->from);
  std::vector<BlockIndex> blocks = migrations_.SourceOf(pull);
  if (blocks.empty()) return false;
  const bool urgent = IsLeaving(from) || migrations_.all().size() > kBackgroundMovesMax;
  return pulls_.Start({from.id, from.hops, {}, std::move(blocks), pull.end_token}, to.id, to.hops,
                      pull, {.background = !urgent, .activations = ActivationsFrom(&from)});
}

// Starts to fetch what the request has left into `to`. False: there is nothing to fetch.
bool Transfers::StartFetch(Pipeline& to, const sched::KvPull& pull, bool doubtful) {
  const RecoverableKv* left = kv_.Find(pull.id);
  if (left == nullptr || requests_.at(pull.id).pipeline != to.id) return false;
  if (!StillIntact(pull.id, *left)) return false;
  MR_CHECK(left->bits == to.bits) << "KV of request " << pull.id << " would leave its bit class";
  const sched::SequenceKv& there = left->kv[static_cast<size_t>(pull.index)];
  if (pull.end_token > there.tokens) return false;
  return pulls_.Start(
      {left->pipeline, ReadableHops(left->pipeline), left->lacking, there.blocks, there.tokens},
      to.id, to.hops, pull,
      {.activations = ActivationsFrom(pipelines_.Find(left->pipeline)), .doubtful = doubtful});
}

void Transfers::Done(const PullDone& done, Time now) {
  copy_rate_.Passed(true, now);
  counters_.moved_bytes += static_cast<uint64_t>(std::max<int64_t>(0, done.bytes));
  counters_.pulls_failed += done.status.ok() ? 0 : 1;
  const std::optional<KvPulls::Ended> ended = pulls_.Done(done);
  if (!ended) return;
  MeasurePull(done, ended->pull);
  if (ended->layers.HasAllKv()) copy_rate_.Arrived(ended->pull.end_token - ended->pull.first_token);
  Pipeline& to = pipelines_.at(ended->to);
  pipelines_.Touch(to.id);
  CountHandOver(*ended, to);
  NotePull(*ended, to);
  const Migrations::Migration* migration = migrations_.Find(ended->pull.id);
  if (migration != nullptr && migration->to == to.id) {
    RoundEnded(to, *ended, now);
  } else {
    FetchEnded(to, *ended, now);
  }
  requests_.TryQueue();  // the request may wait for the end of its last pull
}

void Transfers::MeasurePull(const PullDone& done, const sched::KvPull& pull) {
  const int tokens = pull.end_token - pull.first_token;
  if (!done.status.ok() || tokens <= 0 || !(done.seconds > 0)) return;
  const double here = done.seconds / tokens;
  const double weight = pull_s_per_token_ > 0 ? kPullWeight : 1;
  pull_s_per_token_ += weight * (here - pull_s_per_token_);
}

// Which workers the KV of a prompt went between. Bytes that one worker pulled from several are
// divided by their layers.
void Transfers::CountHandOver(const KvPulls::Ended& ended, const Pipeline& to) {
  const Pipeline* from = pipelines_.Find(ended.from);
  const bool complete = ended.layers.HasAllKv();
  if (from == nullptr || from->role != StageRole::kPrefill || !complete) return;
  for (size_t source = 0; source < from->hops.size(); ++source) {
    for (size_t here = 0; here < to.hops.size(); ++here) {
      const LayerRange common = from->hops[source].layers.Overlap(to.hops[here].layers);
      if (common.size() == 0) continue;
      EdgeFlows::Flow flow{.tokens = ended.pull.end_token - ended.pull.first_token, .requests = 1};
      for (const KvPulls::Arrived& part : ended.arrived) {
        const int layers = part.layers.Overlap(common).size();
        if (layers == 0) continue;
        flow.bytes += part.bytes * layers / part.layers.size();
        flow.seconds = std::max(flow.seconds, part.seconds);
      }
      pipelines_.HandedOver(from->names[source], to.names[here], flow);
    }
  }
}

// In the request's account.
void Transfers::NotePull(const KvPulls::Ended& ended, Pipeline& to) const {
  TimeAccount* account = to.scheduler->AccountOf(ended.pull.id);
  if (account == nullptr || ended.arrived.empty()) return;
  TimeEntry& pull = account->At(TimeUse::kPull, account->because());
  for (const KvPulls::Arrived& part : ended.arrived) {
    pull.bytes += part.bytes;
    pull.pull_s = std::max(pull.pull_s, part.seconds);
  }
  pull.tokens += ended.pull.end_token - ended.pull.first_token;
  pull.from.clear();
  for (const PipelineHop& hop : ReadableHops(ended.from)) {
    const Membership::Worker* worker = members_.Find(hop.ranks.front().worker);
    if (worker == nullptr) continue;
    pull.from += (pull.from.empty() ? "" : ", ") + worker->join.name;
  }
}

// A part of a round has arrived. After the last part another round follows, or the request pauses.
void Transfers::RoundEnded(Pipeline& to, const KvPulls::Ended& ended, Time now) {
  const RequestId id = ended.pull.id;
  Pipeline& from = pipelines_.at(ended.from);
  to.scheduler->KvArrived(id, ended.layers.HasAllKv(), now);
  // Advance starts the next round, or pauses the request.
  const bool goes_on =
      migrations_.PullEnded(id, ended.layers, *from.scheduler, *to.scheduler, now, to.pulls);
  if (!goes_on) Abandon(id, now);
}

std::vector<Transfers::Returned> Transfers::ContinuePauses(Time now) {
  std::vector<Returned> returned;
  for (RequestId id : migrations_.Pausing()) {
    const Migrations::Migration* migration = migrations_.Find(id);
    Pipeline& from = pipelines_.at(migration->from);
    Pipeline& to = pipelines_.at(migration->to);
    auto paused = migrations_.Pause(id, *from.scheduler, *to.scheduler, now, to.pulls);
    if (!paused) continue;
    pipelines_.Touch(from.id);
    pipelines_.Touch(to.id);
    requests_.TryQueue();
    dropped_ = true;
    if (paused->outcome == Migrations::Outcome::kMoved) {
      ChangeOwner(from, to, id, std::move(*paused));
      continue;
    }
    ++counters_.moves_failed;
    memory_.Release(to.id, id);
    if (!paused->request) continue;  // it has ended, and the client has its end
    pipelines_.Remove(from, id);
    returned.emplace_back(id, std::move(paused->request->request));
  }
  return returned;
}

// The request is paused at a step boundary. The destination owns it from now on.
void Transfers::ChangeOwner(Pipeline& from, Pipeline& to, RequestId id, Migrations::Paused paused) {
  counters_.drained_moved += IsLeaving(from) ? 1 : 0;
  pipelines_.Remove(from, id);
  to.requests.Add(id, 0);
  requests_.Enter(id, to.id);
  requests_.at(id).placement =
      Placement{.walk = {to.role, to.route}, .pipeline = to.id, .counts = false};
  if (!paused.pulls_rest) return;
  kv_.Leave(id, {.pipeline = from.id,
                 .bits = from.bits,
                 .kv = std::move(paused.request->kv),
                 .held = from.scheduler->HeldBlocks(id),
                 .moves = true,
                 .fetched = std::move(paused.migration.fetched)});
}

void Transfers::Abandon(RequestId id, Time now) {
  const Migrations::Migration* migration = migrations_.Find(id);
  const PipelineId from = migration->from, to = migration->to;
  migrations_.Abandon(id, SchedulerOf(from), SchedulerOf(to), now);
  pulls_.Release(id, from);
  memory_.Release(to, id);
  ++counters_.moves_failed;
  pipelines_.Touch(from);
  pipelines_.Touch(to);
}

void Transfers::AbandonRetiring(Time now) {
  std::vector<RequestId> abandoned;
  for (const auto& [id, migration] : migrations_.all()) {
    if (pipelines_.at(migration.to).retiring) abandoned.push_back(id);
  }
  for (RequestId id : abandoned) Abandon(id, now);
}

void Transfers::Closed(PipelineId closed, Time now) {
  pulls_.DropInto(closed);
  std::vector<RequestId> ended;
  for (const auto& [id, migration] : migrations_.all()) {
    if (migration.from == closed || migration.to == closed) ended.push_back(id);
  }
  for (RequestId id : ended) Abandon(id, now);
  if (kv_.SurvivingHops(closed) == nullptr) GiveUpIn(closed);
}

std::vector<PipelineHop> Transfers::SurvivingHops(PipelineId pipeline) const {
  const std::vector<PipelineHop>* hops = kv_.SurvivingHops(pipeline);
  return hops == nullptr ? std::vector<PipelineHop>() : *hops;
}

void Transfers::GiveUpSurviving() {
  while (const auto lost = kv_.AnyLost()) GiveUpIn(*lost);
}

bool Transfers::Moves(RequestId id) const {
  const RecoverableKv* left = kv_.Find(id);
  return Migrates(id) || (left != nullptr && left->moves);
}

int Transfers::moving() const { return static_cast<int>(migrations_.all().size()) + kv_.moving(); }

// The request's KV does not arrive as it was planned to. `recomputes`: some of it is computed
// again.
void Transfers::MoveFailed(RequestId id, bool recomputes) {
  RecoverableKv* left = kv_.Find(id);
  if (left == nullptr || !std::exchange(left->moves, false)) return;
  ++counters_.moves_failed;
  counters_.hand_overs_failed += left->hands_over ? 1 : 0;
  recomputed_ += recomputes ? 1 : 0;
}

// The pipeline computes the request from its tokens, so what it has left is dropped.
void Transfers::FetchFailed(Pipeline& to, RequestId id, Time now) {
  const Requests::Request* request = requests_.Find(id);
  if (request != nullptr && request->pipeline == to.id) GiveUp(id);
  to.scheduler->KvArrived(id, false, now);
  pipelines_.Touch(to.id);
}

// The fetch for one sequence has ended. All sequences of a request must compute at the same layers,
// so the lacking layers accumulate over its sequences.
void Transfers::FetchEnded(Pipeline& to, const KvPulls::Ended& ended, Time now) {
  const RequestId id = ended.pull.id;
  RecoverableKv* left = kv_.Find(id);
  const bool in_time = left != nullptr && left->pipeline == ended.from &&
                       requests_.at(id).pipeline == to.id && StillIntact(id, *left);
  if (!in_time) return FetchFailed(to, id, now);
  if (ended.at_once && !ended.layers.HasAllKv()) {
    // Some hop of the source may be gone. What the others have is pulled again, with the
    // activations that a layer without KV computes from.
    MoveFailed(id, true);
    if (!StartFetch(to, ended.pull, /*doubtful=*/true)) FetchFailed(to, id, now);
    return;
  }
  if (left->fetched) {
    left->fetched->KeepCommon(ended.layers);
  } else {
    left->fetched = ended.layers;
  }
  const LayerRange lacking = left->fetched->Lacking();
  const bool none = lacking.size() == options_.num_layers;
  if (lacking.size() > 0) MoveFailed(id, true);
  if (lacking.size() == 0 || none) {
    to.scheduler->KvArrived(id, !none, now);
  } else {
    to.scheduler->KvArrivedWithout(id, lacking, now);
  }
  const auto info = to.scheduler->Inspect(id, now);
  if (info && info->state == sched::RequestState::kPulling) return;  // for other sequences
  if (!left->moves) {
    counters_.fetched += none ? 0 : 1;
    counters_.computed_in_part += none || lacking.size() == 0 ? 0 : 1;
  }
  Drop(id);
}

}  // namespace millrace::cluster
