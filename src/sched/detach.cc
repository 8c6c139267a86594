// Requests that leave to go on elsewhere: frozen, so that their last token here is known, or taken
// out as they are, because their lane is lost. What is sampled for them afterwards is dropped: the
// next scheduler computes the same token.
#include <algorithm>
#include <utility>

#include "sched/scheduler_impl.h"

namespace millrace::sched {

bool SchedulerImpl::Freeze(RequestId id) {
  Request* r = Find(id);
  if (!r) return true;
  r->frozen = true;
  return r->in_flight == 0;
}

void SchedulerImpl::Thaw(RequestId id) {
  Request* r = Find(id);
  if (r) r->frozen = false;
}

NewRequest SchedulerImpl::WhatIsKnownOf(const Request& request) {
  NewRequest known = request.spec;
  known.imported_tokens = 0;
  known.times = request.times;
  known.cached_prompt_tokens = request.cached_prompt_tokens;
  for (const Sequence& s : request.sequences) known.resumed.push_back({s.output, !s.live()});
  return known;
}

// Tokens of the one sequence whose KV is in device blocks once everything that was asked of the
// executor so far has ended well: a swap-in under way has not.
int SchedulerImpl::ComputedForSure(const Request& request) const {
  const Sequence& s = request.sequences.front();
  if (request.sequences.size() > 1 || request.state != RequestState::kRunning) return 0;
  if (s.in_flight && s.in_flight == s.swapped_in_by) return 0;
  // They must be told with the first token, and are lost where the prompt is imported.
  if (request.asks_prompt_logprobs && s.output.empty()) return 0;
  return s.computed;
}

std::optional<DetachedRequest> SchedulerImpl::Peek(RequestId id) const {
  const Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  DetachedRequest here{.request = WhatIsKnownOf(*r), .computed_tokens = ComputedForSure(*r)};
  const kv::BlockTable& table = r->sequences.front().table;
  for (kv::BlockHandle block : std::span(table).first(kv_.BlocksFor(here.computed_tokens))) {
    here.blocks.push_back(block.index);
  }
  return here;
}

DetachedRequest SchedulerImpl::WhatGoes(const Request& request, std::optional<Time> hold_until) {
  DetachedRequest goes{.request = WhatIsKnownOf(request)};
  if (!hold_until) return goes;
  const int computed = ComputedForSure(request);
  const kv::BlockTable& table = request.sequences.front().table;
  const auto blocks = std::span(table).first(kv_.BlocksFor(computed));
  if (!HoldBlocks(request.spec.id, blocks, *hold_until)) return goes;
  goes.computed_tokens = computed;
  for (kv::BlockHandle block : blocks) goes.blocks.push_back(block.index);
  return goes;
}

std::optional<DetachedRequest> SchedulerImpl::Expose(RequestId id, Time now, Duration hold_kv) {
  const Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  return WhatGoes(*r, now + hold_kv);
}

std::optional<DetachedRequest> SchedulerImpl::Detach(RequestId id, Time now,
                                                     std::optional<Duration> hold_kv) {
  Request* r = Find(id);
  if (!r || r->state == RequestState::kFinished) return std::nullopt;
  DetachedRequest goes = WhatGoes(*r, hold_kv ? std::optional(now + *hold_kv) : std::nullopt);
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

// Its id may come back at once, even while steps in flight still hold what it was.
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
    if (s.told && !s.in_flight) released_.push_back(s.id);
    FreeBlocks(s);
  }
  UpdatePromise(request);
  ++stats_.requests_detached;
  auto node = requests_.extract(request.spec.id);
  leaving_.push_back(std::move(node.mapped()));
  if (request.in_flight == 0) Bury(request);
}

}  // namespace millrace::sched
