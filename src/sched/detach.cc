// Requests that leave to continue in another scheduler: either paused, so that their last token
// here is known, or taken out immediately, because their pipeline is lost. Later samples for them
// are dropped: the next scheduler computes the same token.
#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "sched/scheduler_impl.h"

namespace millrace::sched {

bool SchedulerImpl::Pause(RequestId id) {
  Request* r = Find(id);
  if (!r) return true;
  r->paused = true;
  return r->in_flight == 0;
}

void SchedulerImpl::Unpause(RequestId id) {
  Request* r = Find(id);
  if (r) r->paused = false;
}

NewRequest SchedulerImpl::SnapshotOf(const Request& request) {
  NewRequest known = request.spec;
  known.imported_tokens.clear();
  known.import_open = false;
  known.stop_after_prompt = false;
  known.hold_kv.reset();
  known.times = request.times;
  known.cached_prompt_tokens = request.cached_prompt_tokens;
  for (const Sequence& s : request.sequences) known.resumed.push_back({s.output, !s.live()});
  return known;
}

int DetachedRequest::computed_tokens() const {
  int most = 0;
  for (const SequenceKv& s : kv) most = std::max(most, s.tokens);
  return most;
}

// Leading tokens whose KV is in the sequence's device blocks after every plan sent so far has
// ended, successfully or not. A block that still has to be copied for the sequence does not count.
int SchedulerImpl::CommittedTokens(const Sequence& sequence) const {
  if (!sequence.live() || !sequence.started) return 0;
  const bool copies = sequence.in_flight && sequence.in_flight == sequence.copied_by;
  if (!copies) return sequence.computed;
  return sequence.computed / options_.block_size * options_.block_size;
}

// With `lacking`: includes KV that only some layers lack, and reports these layers.
std::vector<SequenceKv> SchedulerImpl::CommittedKv(const Request& request,
                                                   std::optional<LayerRange>* lacking) const {
  if (request.state != RequestState::kRunning) return {};
  std::vector<SequenceKv> kv(request.sequences.size());
  bool any = false;
  for (const Sequence& s : request.sequences) {
    // One step swaps in the KV of all sequences, including those that do not run in it.
    if (s.in_flight && s.in_flight == s.swapped_in_by) return {};
    // They are delivered with the first token, and are lost if the prompt is imported.
    if (request.asks_prompt_logprobs && s.live() && s.output.empty()) return {};
    int tokens = CommittedTokens(s);
    if (lacking && s.live() && s.lacks_layers()) {
      tokens = s.lacking_until;
      *lacking = s.lacking;
    }
    any = any || tokens > 0;
    kv[s.index].tokens = tokens;
    for (kv::BlockHandle block : std::span(s.table).first(kv_.BlocksFor(tokens))) {
      kv[s.index].blocks.push_back(block.index);
    }
  }
  if (!any) kv.clear();
  return kv;
}

std::optional<DetachedRequest> SchedulerImpl::Peek(RequestId id) const {
  const Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  DetachedRequest here{.request = SnapshotOf(*r), .kv = {}};
  here.kv = CommittedKv(*r, &here.lacking);
  return here;
}

DetachedRequest SchedulerImpl::MakeDetached(const Request& request,
                                            std::optional<Time> hold_until) {
  DetachedRequest goes{.request = SnapshotOf(request), .kv = {}};
  if (!hold_until) return goes;
  std::vector<SequenceKv> kv = CommittedKv(request, nullptr);
  std::vector<kv::BlockHandle> blocks;  // each once
  std::unordered_set<BlockIndex> seen;
  for (const SequenceKv& s : kv) {
    for (BlockIndex block : s.blocks) {
      if (seen.insert(block).second) blocks.push_back(kv_.device().HandleOf(block));
    }
  }
  if (holds_.Hold(request.spec.id, blocks, *hold_until)) goes.kv = std::move(kv);
  return goes;
}

std::optional<DetachedRequest> SchedulerImpl::Export(RequestId id, Time now, Duration hold_kv) {
  const Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  return MakeDetached(*r, now + hold_kv);
}

std::optional<DetachedRequest> SchedulerImpl::Detach(RequestId id, Time now,
                                                     std::optional<Duration> hold_kv) {
  Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  DetachedRequest goes = MakeDetached(*r, hold_kv ? std::optional(now + *hold_kv) : std::nullopt);
  Leave(*r);
  return goes;
}

std::vector<DetachedRequest> SchedulerImpl::DetachAll(Time now) {
  std::vector<std::pair<OrderKey, RequestId>> order;
  for (const auto& [id, r] : requests_) {
    if (r->state != RequestState::kFinished) order.emplace_back(r->key, id);
  }
  std::ranges::sort(order);
  std::vector<DetachedRequest> left;
  for (const auto& [key, id] : order) left.push_back(*Detach(id, now, std::nullopt));
  return left;
}

// The id may be added again at once, even while steps in flight still hold the old request.
void SchedulerImpl::Leave(Request& request) {
  for (Sequence& s : request.sequences) {
    if (s.live()) IndexPrefixes(s);
  }
  LeaveQueue(request);
  request.sharing_prompt = false;
  request.detached = true;
  for (Sequence& s : request.sequences) {
    if (!s.live()) continue;
    s.finish = FinishReason::kAbort;
    if (s.sent && !s.in_flight) released_.push_back(s.id);
    FreeBlocks(s);
  }
  UpdatePromise(request);
  ++stats_.requests_detached;
  auto node = requests_.extract(request.spec.id);
  leaving_.push_back(std::move(node.mapped()));
  if (request.in_flight == 0) Reap(request);
}

}  // namespace millrace::sched
