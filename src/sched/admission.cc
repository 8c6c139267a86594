// Which requests may start. In order and without overtaking: the first that cannot start ends the
// search. docs/decisions/0003-admission.md proves that the first in order always finishes.
#include <algorithm>

#include "base/check.h"
#include "sched/preemption_cost.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

void SchedulerImpl::AdmitWaiting(StepRoom& room, Time now) {
  const int64_t share = PromptsPerStep(options_, requests_);
  const int share_tokens = options_.max_num_batched_tokens / kFillTokens;
  const int tokens = room.tokens;
  const int full = limits_.tokens_before_prompts.value_or(room.tokens_in_all);
  int64_t started = 0;
  while (room.tokens > 0 && room.sequences > 0) {
    if (started >= share && tokens - room.tokens >= share_tokens) return;
    if (room.tokens_in_all - room.tokens >= full) return;
    Request* next = order_.Next();
    if (next == nullptr) return;
    Request& r = *next;
    if (r.pools && room.vectors == 0) return;
    r.verdict = Consider(r);
    if (r.verdict.reason != Verdict::Reason::kAdmitted) {
      room.refused = r.verdict.reason;
      lacks_blocks_ = lacks_blocks_ || r.verdict.reason == Verdict::Reason::kBlocks;
      return;
    }
    accounting_.Settle(r, now);
    order_.Starts(r);
    r.state == RequestState::kSwapped ? preemption_.SwapIn(r) : StartFresh(r);
    if (r.import.awaited && imports_.Start(r)) {
      r.import.since = now;
      if (r.times.last_token && !r.import.open) {
        const Time left = std::max(*r.times.last_token, r.times.last_scheduled.value_or(Time{}));
        r.times.held = r.times.held + (now - left);
      }
      continue;
    }
    requests_.Run(r);
    forks_.UpdatePromise(r);
    if (!r.times.first_scheduled) r.times.first_scheduled = now;
    r.times.last_scheduled = now;
    r.was_admitted = true;
    builder_.Choose(r, room);
    builder_.Emit(r, room);
    ++started;
  }
}

Verdict SchedulerImpl::Consider(Request& request) {
  if (request.in_flight > 0) return {Verdict::Reason::kStepInFlight};
  const int sequences_max = options_.stages * options_.max_num_seqs;
  const int sequences = requests_.running_sequences() + requests_.pulling_sequences();
  if (sequences > 0 && sequences + request.live() > sequences_max) {
    return {Verdict::Reason::kSequences, request.live(), sequences_max - sequences};
  }
  Verdict& last = request.verdict;
  if (last.reason == Verdict::Reason::kBlocks && !requests_.running().empty() &&
      kv_.available() - forks_.promised_blocks() <= last.available &&
      last.tries_saved < kTriesSavedMax) {
    ++last.tries_saved;
    return last;
  }
  return request.state == RequestState::kSwapped ? ConsiderSwapped(request)
                                                 : ConsiderFresh(request);
}

// The whole remaining prefill must fit, not only its first chunk, less what the prefix cache holds.
// Hits without an owner count too, because using them takes available blocks.
Verdict SchedulerImpl::ConsiderFresh(Request& request) {
  request.leader = static_cast<int>(std::ranges::find_if(request.sequences, &Sequence::live) -
                                    request.sequences.begin());
  request.sharing_prompt = request.live() > 1;
  Sequence& s = request.sequences[request.leader];
  const int target = request.TargetOf(s);
  const Verdict reservation = reservations_.Consider(request);
  if (reservation.reason != Verdict::Reason::kAdmitted) return reservation;
  kv::PrefixMatch match;
  if (kv_.prefix_caching()) {
    if (!kv_.IsCurrent(s.chain)) s.chain = kv_.NewChain(request.spec.cache_salt);
    const int hit_tokens_max = request.WantsWholePrompt() ? 0 : target - 1;
    match = kv_.Match(s.chain, request.TokensOf(s), hit_tokens_max);
  }
  const int needed =
      kv_.BlocksFor(target) - match.blocks + match.unowned + forks_.BlocksToCome(request);
  return VerdictFor(request, needed);
}

Verdict SchedulerImpl::ConsiderSwapped(Request& request) {
  const Verdict reservation = reservations_.Consider(request);
  if (reservation.reason != Verdict::Reason::kAdmitted) return reservation;
  builder_.ChooseAll(request);
  const int needed = DistinctBlocks(request, kv_) + builder_.BlocksNeeded(/*on_host=*/true) +
                     forks_.BlocksToCome(request);
  return VerdictFor(request, needed);
}

// The watermark keeps room for running requests. A request that resumes after preemption also
// leaves them one block each, so that it is not preempted again at once. With no running request
// neither applies: a request that fills the pool must be able to start.
Verdict SchedulerImpl::VerdictFor(const Request& request, int needed) const {
  Verdict v{Verdict::Reason::kAdmitted, needed, kv_.available() - forks_.promised_blocks(), 0};
  if (!requests_.running().empty() && options_.kv_policy == KvPolicy::kPaged) {
    v.headroom = watermark_blocks_ + (request.was_admitted ? requests_.running_sequences() : 0);
  }
  if (needed + v.headroom > v.available) v.reason = Verdict::Reason::kBlocks;
  return v;
}

void SchedulerImpl::StartFresh(Request& request) {
  Sequence& s = request.sequences[request.leader];
  const int target = request.TargetOf(s);
  s.started = true;
  s.table.reserve(kv_.BlocksFor(request.prompt_tokens + request.output_limit));
  s.chain.nodes.reserve(kv_.prefix_caching() ? s.table.capacity() : 0);
  if (kv_.prefix_caching() && !request.WantsWholePrompt()) {
    kv_.TakeMatch(s.chain, s.table);
    s.computed = static_cast<int>(s.table.size()) * options_.block_size;
    stats_.prefix_query_tokens += target;
    stats_.prefix_hit_tokens += s.computed;
    if (!request.times.first_scheduled) request.cached_prompt_tokens = s.computed;
  }
  // Not what is computed again, or was computed elsewhere.
  if (!request.was_admitted && !request.spec.times) order_.Charge(request, target - s.computed, 0);
  s.output.reserve(std::min(request.output_limit, kOutputReserveMax));
  reservations_.Take(request);
  MR_CHECK(kv_.Grow(s.table, target)) << "admission counted wrong for request " << request.spec.id;
}

}  // namespace millrace::sched
