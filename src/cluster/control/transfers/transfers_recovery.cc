// What requests have left in pipelines that no longer run them: when it is kept, fetched, renewed
// and given up.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cluster/control/pipelines/fetch_cost.h"
#include "cluster/control/transfers/transfers.h"

namespace millrace::cluster {

void Transfers::Retain(Pipeline& pipeline, const PipelineHop* failed,
                       std::optional<WorkerId> suspect, Time now) {
  GiveUpExpiredIn(pipeline.id);  // only this scheduler knows, and it is about to go
  std::vector<PipelineHop> surviving = ReadableHops(pipeline.id);
  std::erase_if(surviving, [&](const PipelineHop& hop) {
    return (failed != nullptr && hop.shards == failed->shards) ||
           (suspect &&
            std::ranges::find(hop.ranks, *suspect, &WorkerAddress::worker) != hop.ranks.end());
  });
  if (surviving.empty()) return;
  for (RequestId id : pipeline.requests.Ids()) {
    if (auto here = pipeline.scheduler->Peek(id)) LeaveBehind(pipeline, id, std::move(*here), {});
  }
  if (kv_.Any(pipeline.id)) memory_.Survive(pipeline.id, surviving);
  kv_.Survives(pipeline.id, std::move(surviving), now + options_.waiting_limit);
}

void Transfers::Leave(Pipeline& pipeline, RequestId id, const sched::DetachedRequest& request) {
  LeaveBehind(pipeline, id, request, pipeline.scheduler->HeldBlocks(id));
}

// Less than one block is not worth fetching. `held`: the blocks that the pipeline's scheduler still
// holds, if the pipeline continues.
void Transfers::LeaveBehind(Pipeline& pipeline, RequestId id, sched::DetachedRequest here,
                            std::vector<BlockIndex> held) {
  if (here.computed_tokens() < options_.block_size) {
    pipeline.scheduler->ReleaseKv(id);
    return;
  }
  // KV that it left earlier in the same pipeline is either no longer held or part of `held`.
  const RecoverableKv* earlier = kv_.Find(id);
  if (earlier != nullptr && earlier->pipeline != pipeline.id) Drop(id);
  kv_.Leave(id, {.pipeline = pipeline.id,
                 .bits = pipeline.bits,
                 .kv = std::move(here.kv),
                 .lacking = here.lacking,
                 .held = std::move(held)});
}

void Transfers::Drop(RequestId id) {
  const RecoverableKv* left = kv_.Find(id);
  if (left == nullptr) return;
  if (Pipeline* alive = pipelines_.Find(left->pipeline)) {
    alive->scheduler->ReleaseKv(id);
    pipelines_.Touch(alive->id);
  }
  const PipelineId pipeline = left->pipeline;
  pulls_.Release(id, pipeline);
  kv_.Drop(id);
  if (!kv_.Any(pipeline) && !pipelines_.contains(pipeline)) memory_.Close(pipeline);
  dropped_ = true;
}

void Transfers::GiveUp(RequestId id) {
  const RecoverableKv* left = kv_.Find(id);
  counters_.fetch_too_slow += left != nullptr && left->too_slow ? 1 : 0;
  MoveFailed(id, true);
  Drop(id);
}

void Transfers::GiveUpIn(PipelineId pipeline) {
  for (RequestId id : kv_.In(pipeline)) GiveUp(id);
}

// Whether the KV is still intact. A pipeline that still runs may have reused its blocks; a lost one
// cannot.
bool Transfers::StillIntact(RequestId id, const RecoverableKv& left) const {
  const sched::Scheduler* runs = SchedulerOf(left.pipeline);
  return runs == nullptr || (!left.held.empty() && runs->HeldBlocks(id) == left.held);
}

// A pipeline that only decodes fetches in any case. Requests that fetch from the same pipeline into
// the same one share its links.
bool Transfers::FetchIsBetter(const RecoverableKv& left, const std::vector<PipelineHop>& readable,
                              const Pipeline& to) const {
  if (options_.links == nullptr || to.role == StageRole::kDecode) return true;
  const auto prefill_per_s = pipelines_.PrefillTokensPerS(to);
  const double token_s = LinkSecondsPerToken(readable, to, deployment_.layout(), *options_.links);
  if (!prefill_per_s || token_s == 0) return true;
  const int64_t tokens = left.distinct_tokens(options_.block_size);
  int64_t coming = tokens;
  for (const auto& [id, other] : kv_.all()) {
    if (other.pipeline != left.pipeline || requests_.at(id).pipeline != to.id) continue;
    coming += other.distinct_tokens(options_.block_size);
  }
  const int64_t ahead = to.requests.prefill_tokens_ahead();
  const FetchCost cost{.link_s = token_s * static_cast<double>(coming),
                       .lacking = PartLacking(readable, to),
                       .compute_s = static_cast<double>(ahead + tokens) / *prefill_per_s};
  return cost.FetchIsBetter();
}

// A sequence that has ended fetches nothing.
std::vector<int> Transfers::ToFetch(RequestId id, const Pipeline& pipeline) {
  std::vector<int> tokens;
  RecoverableKv* left = kv_.Find(id);
  if (left == nullptr || left->bits != pipeline.bits || !StillIntact(id, *left)) return tokens;
  const std::vector<PipelineHop> readable = ReadableHops(left->pipeline);
  const bool any = std::ranges::any_of(pipeline.hops, [&](const PipelineHop& hop) {
    return std::ranges::any_of(readable, [&](const PipelineHop& holder) {
      return holder.layers.Overlap(hop.layers).size() > 0;
    });
  });
  left->too_slow = any && !FetchIsBetter(*left, readable, pipeline);
  if (!any || left->too_slow) return tokens;
  left->fetched.reset();
  const std::vector<sched::ResumedSequence>& resumed = requests_.at(id).waiting->resumed;
  std::optional<int> first;
  for (size_t i = 0; i < left->kv.size(); ++i) {
    const bool ended = !resumed.empty() && resumed[i].finished;
    tokens.push_back(ended ? 0 : left->kv[i].tokens);
    if (!ended && !first) first = tokens.back();
  }
  if (first.value_or(0) == 0) tokens.clear();
  return tokens;
}

// Blocks whose hold has expired may have been reused since.
void Transfers::GiveUpExpiredIn(PipelineId pipeline) {
  for (RequestId id : kv_.In(pipeline)) {
    if (!StillIntact(id, *kv_.Find(id))) GiveUp(id);
  }
}

void Transfers::Tick(Time now) {
  RenewLeases(now);
  const auto there = [&](const PipelineHop& hop) { return StillThere(hop); };
  for (PipelineId id : kv_.Expired(now, there)) GiveUpIn(id);
}

bool Transfers::PullerAlive(PipelineId to, Time now) const {
  const Pipeline* pipeline = pipelines_.Find(to);
  return pipeline != nullptr &&
         std::ranges::all_of(pipeline->workers, [&](const std::vector<WorkerId>& hop) {
           return std::ranges::all_of(hop, [&](WorkerId id) { return members_.Alive(id, now); });
         });
}

// The source keeps KV for `hold_limit`: its scheduler pins the blocks, and its workers allow reads.
// Both are renewed while heartbeats of the pulling workers arrive, however slow the pull is: the
// request may wait for blocks there, or the pull for the network. Without heartbeats the lease
// expires. An expired lease is not renewed, because its blocks may belong to another request.
void Transfers::RenewLeases(Time now) {
  const auto alive = [&](PipelineId to) { return PullerAlive(to, now); };
  for (RequestId id : migrations_.DueForRenewal(now, alive)) {
    const PipelineId from = migrations_.Find(id)->from;
    if (!migrations_.Renew(id, *SchedulerOf(from), now)) continue;
    pulls_.Renew(id, from);
    ++counters_.leases_renewed;
  }
  for (RequestId id : kv_.DueForRenewal(now, options_.hold_limit)) {
    RecoverableKv& left = *kv_.Find(id);
    const std::optional<PipelineId> to = requests_.at(id).pipeline;
    if (!to || *to == left.pipeline || !alive(*to)) continue;
    left.renewal.Restart(now, options_.hold_limit);
    if (Renew(id, left, now)) ++counters_.leases_renewed;
  }
}

// Two pipelines must not wait for blocks that each keeps for the other. So blocks that no running
// request owns are kept longer only once the pull has begun, or where no pipeline waits in the
// opposite direction: for a hand-over from prefill, and in a retiring pipeline
// (docs/decisions/0006).
bool Transfers::Renew(RequestId id, const RecoverableKv& left, Time now) {
  const bool reads = pulls_.Reads(id, left.pipeline);
  if (Pipeline* from = pipelines_.Find(left.pipeline)) {
    if (!reads && !from->retiring && from->role != StageRole::kPrefill) return false;
    if (!from->scheduler->ExtendHold(id, now, options_.hold_limit)) return false;
  } else {
    if (!reads) return false;
    kv_.Extend(left.pipeline, now + options_.hold_limit);
  }
  pulls_.Renew(id, left.pipeline);
  return true;
}

void Transfers::CheckIntegrity() const {
  kv_.CheckIntegrity([&](PipelineId id) { return pipelines_.contains(id); },
                     [&](RequestId id) { return requests_.Find(id) != nullptr; });
  for (const auto& [id, migration] : migrations_.all()) {
    const Requests::Request* request = requests_.Find(id);
    MR_CHECK(request != nullptr && request->pipeline == migration.from)
        << "request " << id << " migrates from a pipeline that does not have it";
    MR_CHECK(pipelines_.contains(migration.to))
        << "request " << id << " migrates to a pipeline that is gone";
  }
}

}  // namespace millrace::cluster
