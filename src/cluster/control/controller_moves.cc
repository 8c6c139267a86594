// KV transfers between pipelines. Two schedulers know a request that moves. In a live migration the
// source runs the request while its KV is copied in rounds. Then it is paused at a step boundary,
// the tail is copied, and the destination runs it. The hand-over from prefill to decode is the
// second half alone (DistServe section 4.3). If a transfer fails, the KV is computed again from the
// tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// Copying in rounds ends when at most this many tokens are left, or after this many rounds.
constexpr int64_t kTailTokensMax = 32;
constexpr int kRoundsMax = 5;
// If more requests than this move at once, their KV is not copied in the background, because the KV
// of all of them is held until they have moved.
constexpr size_t kBackgroundMovesMax = 4;

}  // namespace

// `tokens` rounded down to whole blocks. While the source runs it still writes to the last block.
int ControllerCore::WholeBlocks(int tokens) const {
  return tokens - tokens % options_.scheduler.block_size;
}

KvHandle ControllerCore::NewHandle(PipelineId pipeline) {
  KvHandle handle{.pipeline = pipeline, .generation = NextId()};
  for (size_t half = 0; half < 2; ++half) {
    const uint64_t bits = HashCounter(options_.secret, handle.generation * 2 + half);
    for (size_t i = 0; i < 8; ++i) {
      handle.nonce[half * 8 + i] = static_cast<uint8_t>(bits >> (8 * i));
    }
  }
  return handle;
}

// The prefill pipeline has finished the request. `last` becomes the output of its first token
// instead of its end.
void ControllerCore::HandOver(Pipeline& from, RequestId id, RequestOutput& last, Time now) {
  Tracked& tracked = requests_.at(id);
  from.requests.erase(id);
  tracked.pipeline.reset();
  const Time held_until = now + options_.hold_limit;
  sched::NewRequest request = tracked.spec;
  request.times = last.times;
  request.cached_prompt_tokens = last.cached_prompt_tokens;
  request.resumed.resize(1);
  request.resumed.front().output.assign(last.tokens.begin(), last.tokens.end());
  last.times.reset();

  tracked.waiting = request;
  Pipeline* to = ChoosePipeline(id, tracked, now);
  if (to != nullptr && to->open && moves_.size() < ControllerOptions::kMovesMax * 64) {
    tracked.waiting->imported_tokens = {tracked.prompt_tokens()};
    if (AddTo(*to, id, tracked, now).ok()) {
      moves_.emplace(id, Move{.from = from.id,
                              .to = to->id,
                              .phase = Move::Phase::kTail,
                              .handle = NewHandle(from.id),
                              .held_until = held_until,
                              .held_tokens = tracked.prompt_tokens()});
      ++counters_.moves;
      return;
    }
  }
  from.scheduler->ReleaseKv(id);
  Wait(id, tracked, std::move(request), now);
}

// Starts a live migration: `from` continues to run the request.
Status ControllerCore::StartMove(RequestId id, Pipeline& from, Pipeline& to, Time now) {
  if (from.role == StageRole::kPrefill) {
    return FailedPrecondition(
        "the prompt is still being computed; the request is handed over with its first token");
  }
  if (moves_.size() >= ControllerOptions::kMovesMax) {
    return ResourceExhausted(
        fmt::format("{} requests are migrating already; retry later", moves_.size()));
  }
  if (requests_.at(id).n() != 1) {
    return FailedPrecondition("a request with several sequences cannot migrate");
  }
  // The blocks are held, so that a preemption does not free them while they are read.
  std::optional<sched::DetachedRequest> copy = from.scheduler->Export(id, now, options_.hold_limit);
  const int whole = copy ? WholeBlocks(copy->computed_tokens()) : 0;
  if (whole == 0) {
    from.scheduler->ReleaseKv(id);
    return FailedPrecondition("the request has no complete block of KV to migrate");
  }
  Move move{.from = from.id, .to = to.id, .handle = NewHandle(from.id)};
  move.imported = whole;
  move.resumed = std::ssize(copy->request.resumed.front().output);
  copy->request.imported_tokens = {whole};
  copy->request.import_open = true;
  if (Status added = to.scheduler->Add(std::move(copy->request), now); !added.ok()) {
    from.scheduler->ReleaseKv(id);
    return added;
  }
  moves_.emplace(id, std::move(move));
  dirty_.insert(to.id);
  ++counters_.moves;
  return OkStatus();
}

void ControllerCore::StartPulls(Pipeline& pipeline, Time now) {
  std::vector<PullJob> failed;
  for (const sched::KvPull& pull : std::exchange(pipeline.pulls, {})) {
    const auto move = moves_.find(pull.id);
    const Pipeline* from =
        move == moves_.end() || move->second.to != pipeline.id ? nullptr : Find(move->second.from);
    if (move == moves_.end() && StartFetch(pipeline, pull)) continue;
    if (from == nullptr) {  // its source is gone: compute from tokens
      FetchFailed(pipeline, pull.id, now);
      continue;
    }
    if (!StartPull(pipeline, move->second, *from, pull, now)) {
      failed.push_back({.to = pipeline.id, .pull = pull, .complete = false});
    }
  }
  for (const PullJob& job : failed) PullEnded(job, now);  // last, because it may close pipelines
}

// Whether a worker of the pipeline drains. Its machine may be gone soon.
bool ControllerCore::IsLeaving(const Pipeline& pipeline) const {
  return std::ranges::any_of(
      members_.all(), [&](const auto& w) { return w.second.draining && pipeline.Uses(w.first); });
}

// Which activations are pulled along with KV of `pipeline` (null: it is lost). A hop normally pulls
// the activations that leave it, so that if the next hop is lost later this one computes nothing
// again. From a retiring pipeline they are not pulled over the network, because a change of plan
// should move little and usually splits the layers elsewhere. The same applies to a pipeline with a
// draining worker.
PulledActivations ControllerCore::ActivationsFrom(const Pipeline* pipeline) const {
  const bool any = pipeline == nullptr || (!pipeline->retiring && !IsLeaving(*pipeline));
  return any ? PulledActivations::kAny : PulledActivations::kLocal;
}

// False: the source no longer holds that much KV.
bool ControllerCore::StartPull(Pipeline& pipeline, Move& move, const Pipeline& from,
                               const sched::KvPull& pull, Time now) {
  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(pull.id);
  if (held.empty()) {  // it still runs there
    auto copy = from.scheduler->Peek(pull.id);
    if (copy && !copy->kv.empty()) held = std::move(copy->kv.front().blocks);
    if (const auto info = from.scheduler->Inspect(pull.id, now)) {
      move.preemptions = info->preemptions;
    }
  }
  if (std::ssize(held) * options_.scheduler.block_size < pull.end_token) return false;
  const ExportKv expose{move.handle, std::move(held), pull.end_token, options_.hold_limit};
  move.exported = expose;
  std::vector<KvSource> sources;
  for (size_t hop = 0; hop < from.hops.size(); ++hop) {
    for (size_t rank = 0; rank < from.hops[hop].ranks.size(); ++rank) {
      Send(from.workers[hop][rank], expose);
      sources.push_back({from.hops[hop].ranks[rank],
                         move.handle,
                         from.hops[hop].layers,
                         {static_cast<int>(rank), static_cast<int>(from.hops[hop].ranks.size())}});
    }
  }
  const bool urgent = IsLeaving(from) || moves_.size() > kBackgroundMovesMax;
  const uint64_t job_id = NextId();
  PullJob job{.to = pipeline.id, .pull = pull};
  if (!move.first_token) move.first_token = pull.first_token;
  for (size_t hop = 0; hop < pipeline.hops.size(); ++hop) {
    for (size_t rank = 0; rank < pipeline.workers[hop].size(); ++rank) {
      PullKv order{.transfer = TransferId(NextId()),
                   .pipeline = pipeline.id,
                   .blocks = pull.blocks,
                   .first_token = pull.first_token,
                   .end_token = pull.end_token,
                   .background = move.phase == Move::Phase::kCopying && !urgent,
                   .activations = PulledActivations::kNone};
      if (rank == 0 && hop + 1 < pipeline.hops.size()) order.activations = ActivationsFrom(&from);
      for (const KvSource& source : sources) {
        if (source.layers.Overlap(pipeline.hops[hop].layers).size() > 0) {
          order.sources.push_back(source);
        }
      }
      transfers_.emplace(order.transfer, job_id);
      job.transfers.insert(order.transfer);
      ++job.due;
      Send(pipeline.workers[hop][rank], std::move(order));
    }
  }
  pull_jobs_.emplace(job_id, std::move(job));
  return true;
}

// Whether everything read so far was KV of this request. A worker's lease begins only when its
// message arrives, which may be late. So the pinned blocks must still be held, or the request must
// not have been preempted at the source since the round began.
bool ControllerCore::SourceStillHolds(RequestId id, const Move& move, Time now) const {
  if (move.held_until) return now <= *move.held_until;
  const auto from = pipelines_.find(move.from);
  if (from == pipelines_.end()) return false;
  const auto info = from->second.scheduler->Inspect(id, now);
  return info && info->preemptions == move.preemptions;
}

void ControllerCore::On(ConnectionId, const PullDone& message, Time now) {
  const auto found = transfers_.find(message.transfer);
  if (found == transfers_.end()) {
    ++counters_.stale_messages;
    return;
  }
  const uint64_t job_id = found->second;
  transfers_.erase(found);
  PullJob& job = pull_jobs_.at(job_id);
  job.transfers.erase(message.transfer);
  job.complete = job.complete && message.status.ok();
  if (job.left) NoteFetched(job, message);
  counters_.moved_bytes += static_cast<uint64_t>(std::max<int64_t>(0, message.bytes));
  if (!message.status.ok()) {
    ++counters_.pulls_failed;
    MR_LOG(warn, "pull of request {}'s KV failed: {}", job.pull.id.value(),
           Printable(message.status.message()));
  }
  if (--job.due > 0) return;
  const PullJob done = std::move(job);
  pull_jobs_.erase(job_id);
  PullEnded(done, now);
}

void ControllerCore::PullEnded(const PullJob& job, Time now) {
  if (job.left) return FetchEnded(job, now);
  Pipeline* to = Find(job.to);
  if (to == nullptr) return;
  dirty_.insert(to->id);
  const auto found = moves_.find(job.pull.id);
  if (found == moves_.end() || found->second.to != job.to) {
    to->scheduler->KvArrived(job.pull.id, false, now);
    return;
  }
  Move& move = found->second;
  move.complete = move.complete && job.complete && SourceStillHolds(job.pull.id, move, now);
  const bool tail = move.phase == Move::Phase::kTail;
  if (tail && !move.complete && FetchTail(*to, job, now)) return;
  to->scheduler->KvArrived(job.pull.id, move.complete, now);
  tail ? EndMove(job.pull.id, move.complete) : ContinueMove(job.pull.id, now);
}

// A round has arrived: starts another one, or pauses the request for the tail.
void ControllerCore::ContinueMove(RequestId id, Time now) {
  Move& move = moves_.at(id);
  if (!move.complete) return AbandonMove(id, now);
  Pipeline& from = pipelines_.at(move.from);
  Pipeline& to = pipelines_.at(move.to);
  const auto copy = from.scheduler->Export(id, now, options_.hold_limit);
  if (!copy || copy->computed_tokens() < move.imported) return AbandonMove(id, now);  // preempted
  const int whole = WholeBlocks(copy->computed_tokens());
  const int64_t behind = whole - move.imported;
  if (behind > kTailTokensMax && ++move.rounds < kRoundsMax) {
    const std::vector<TokenId>& output = copy->request.resumed.front().output;
    const Status extended = to.scheduler->ExtendImport(
        id, {output.begin() + move.resumed, output.end()}, whole, to.pulls);
    if (!extended.ok()) return AbandonMove(id, now);
    move.imported = whole;
    move.resumed = std::ssize(output);
    dirty_.insert(to.id);
    return;
  }
  move.phase = Move::Phase::kPausing;
  dirty_.insert(from.id);
  if (from.scheduler->Pause(id)) FinishPause(id, now);
}

void ControllerCore::ContinuePauses(Time now) {
  std::vector<RequestId> paused;
  for (const auto& [id, move] : moves_) {
    if (move.phase != Move::Phase::kPausing) continue;
    if (pipelines_.at(move.from).scheduler->Pause(id)) paused.push_back(id);
  }
  for (RequestId id : paused) {
    if (moves_.contains(id)) FinishPause(id, now);
  }
}

// The request is paused at a step boundary. The KV computed since the last round is the tail.
void ControllerCore::FinishPause(RequestId id, Time now) {
  Move& move = moves_.at(id);
  Pipeline& from = pipelines_.at(move.from);
  Pipeline& to = pipelines_.at(move.to);
  Tracked& tracked = requests_.at(id);
  auto detached = from.scheduler->Detach(id, now, options_.hold_limit);
  if (!detached) return AbandonMove(id, now);  // it has ended, and the client has its end
  move.held_until = now + options_.hold_limit;
  move.held_tokens = detached->computed_tokens();
  from.requests.erase(id);
  const std::vector<TokenId>& output = detached->request.resumed.front().output;
  const bool more =
      detached->computed_tokens() > move.imported || std::ssize(output) > move.resumed;
  if (more) {
    const Status extended = to.scheduler->ExtendImport(
        id, {output.begin() + move.resumed, output.end()},
        std::max(detached->computed_tokens(), static_cast<int>(move.imported)), to.pulls);
    if (!extended.ok()) {
      from.scheduler->ReleaseKv(id);
      tracked.pipeline.reset();
      AbandonMove(id, now);
      return Wait(id, tracked, std::move(detached->request), now);
    }
  }
  to.scheduler->CloseImport(id, now);
  tracked.pipeline = to.id;
  to.requests.insert(id);
  if (router_) tracked.route = to.route;
  const bool pulls_again = detached->computed_tokens() > move.imported;
  move.phase = Move::Phase::kTail;
  dirty_.insert(to.id);
  if (!pulls_again) EndMove(id, move.complete);
}

void ControllerCore::EndMove(RequestId id, bool complete) {
  const auto found = moves_.find(id);
  if (!complete) ++counters_.moves_failed;
  ReleaseSource(found->second, id);
  DropLeft(id, requests_.at(id));  // set if the source was lost meanwhile
  moves_.erase(found);
  try_waiting_ = true;
  retire_ = true;
}

// The destination drops the request. The source continues it, if it still has it.
void ControllerCore::AbandonMove(RequestId id, Time now) {
  const auto found = moves_.find(id);
  const Move move = std::move(found->second);
  moves_.erase(found);
  ++counters_.moves_failed;
  if (Pipeline* to = Find(move.to)) {
    if (move.phase != Move::Phase::kTail) (void)to->scheduler->Detach(id, now, std::nullopt);
    dirty_.insert(to->id);
  }
  if (Pipeline* from = Find(move.from); from != nullptr && move.phase != Move::Phase::kTail) {
    from->scheduler->Unpause(id);
    dirty_.insert(from->id);
  }
  ReleaseSource(move, id);
}

// Ends the moves from or to a lost pipeline.
void ControllerCore::EndMovesOf(PipelineId id, Time now) {
  std::vector<RequestId> moving;
  for (const auto& [request, move] : moves_) {
    if (move.from == id || move.to == id) moving.push_back(request);
  }
  for (RequestId request : moving) {
    const Move& move = moves_.at(request);
    if (move.from == id && move.phase != Move::Phase::kTail) {
      AbandonMove(request, now);  // the caller replays it with the lost pipeline's requests
    } else if (move.to == id) {
      Pipeline* from = Find(move.from);
      if (from != nullptr && move.phase != Move::Phase::kTail) {
        from->scheduler->Unpause(request);
        ReleaseSource(move, request);
      } else if (from != nullptr) {  // its next pipeline can fetch the KV from the source
        CloseSource(move, *from);
        LeaveAtSource(request, move, *from);
      }
      moves_.erase(request);
    }
  }
}

void ControllerCore::ReleaseSource(const Move& move, RequestId id) {
  Pipeline* from = Find(move.from);
  if (from == nullptr) return;
  from->scheduler->ReleaseKv(id);
  dirty_.insert(from->id);
  CloseSource(move, *from);
}

void ControllerCore::CloseSource(const Move& move, const Pipeline& from) {
  for (const std::vector<WorkerId>& hop : from.workers) {
    for (WorkerId worker : hop) Send(worker, ReleaseKv{move.handle});
  }
}

}  // namespace millrace::cluster
