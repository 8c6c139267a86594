// Requests whose KV is imported from another stage: they get blocks, pull, and run when all pulls
// have ended and nothing more is imported.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/new_request.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {
namespace {

void Ask(IncomingPulls& pulls, const Sequence& sequence, int first_token) {
  pulls.Ask(sequence.request->spec.id, sequence.index, first_token, sequence.lacking_until,
            sequence.table);
}

// The blocks that the import takes for a sequence. What siblings share is promised to them as soon
// as they start, with room for all their tokens.
int BlocksFor(const Sequence& sequence, int64_t tokens, int imported, const kv::KvCache& kv) {
  return kv.BlocksFor(sequence.request->sharing_prompt ? static_cast<int>(tokens) : imported);
}

Status CheckExtension(const Request& request, const std::vector<ResumedSequence>& more,
                      const std::vector<int>& imported, const kv::KvCache& kv,
                      int blocks_of_others) {
  const auto n = std::ssize(request.sequences);
  if (std::ssize(more) != n || std::ssize(imported) != n) {
    return InvalidArgument(
        fmt::format("{} and {} entries for {} sequences", more.size(), imported.size(), n));
  }
  int missing = 0, most = 0;
  bool any = false;
  for (const Sequence& s : request.sequences) {
    const auto k = static_cast<size_t>(s.index);
    if (!s.live() || more[k].finished) continue;
    any = true;
    if (s.table.empty()) {
      return FailedPrecondition(fmt::format("sequence {} imports nothing so far", s.index));
    }
    const int64_t total = request.TotalOf(s) + std::ssize(more[k].output);
    MR_RETURN_IF_ERROR(CheckLength(s.output.size() + more[k].output.size(), request.output_limit));
    MR_RETURN_IF_ERROR(CheckImportedTokens(imported[k], total));
    if (imported[k] < s.lacking_until) {
      return InvalidArgument(fmt::format("{} tokens are already being imported, not {}",
                                         s.lacking_until, imported[k]));
    }
    const int blocks = BlocksFor(s, total, imported[k], kv);
    missing += std::max(0, blocks - static_cast<int>(s.table.size()));
    most = std::max(most, blocks);
  }
  if (!any) return InvalidArgument("every sequence has ended");
  const int left = kv.available() - blocks_of_others;
  if (missing > 0 && missing > left) {
    return ResourceExhausted(
        fmt::format("{} more KV blocks are needed and {} are left", missing, std::max(left, 0)));
  }
  if (request.reserved_blocks > 0 && most * n > request.reserved_blocks) {
    return ResourceExhausted(fmt::format("{} KV blocks are needed and {} are reserved", most * n,
                                         request.reserved_blocks));
  }
  return OkStatus();
}

}  // namespace

// False when nothing needs to be imported.
bool SchedulerImpl::StartPulling(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  const bool forked = forks_.ImportsForked(request);
  const int imported = request.ImportedOf(leader);
  leader.lacking_until =
      request.sharing_prompt && !forked ? std::min(imported, request.prompt_tokens) : imported;
  request.import.awaited = leader.lacking_until > 0;
  if (!request.import.awaited) return false;
  requests_.Pull(request);
  if (forked) forks_.TakeTables(request);
  Ask(pulls_, leader, std::min(leader.computed, leader.lacking_until));
  const int shared = forks_.SharedBlocks(request);
  for (const Sequence& s : request.sequences) {
    if (s.waits_with_table()) Ask(pulls_, s, shared * options_.block_size);
  }
  forks_.UpdatePromise(request);
  return true;
}

// Blocks that are taken away are not returned while a step in flight copies out of them.
std::vector<BlockIndex> SchedulerImpl::TakeReturned() {
  const StepId first = ledger_.first_in_flight();
  return kv_.device().TakeReturned([&](BlockIndex block) { return pulls_.IsRead(block, first); });
}

// Copies to the host that have no step to travel in must not delay a pull, because the next step
// may need it. The request that was to be swapped out is recomputed instead.
void SchedulerImpl::DropUnsentSwaps() {
  const StepId unsent = ledger_.next();
  if (!pulls_.AnyWaitsFor(unsent)) return;
  for (const auto& [key, r] : requests_.waiting()) {
    if (r->state != RequestState::kSwapped || r->swapped_out_by != unsent) continue;
    DropKv(kv_, *r);
    r->state = RequestState::kPreempted;
  }
  builder_.DropSwapsOut();
}

Status SchedulerImpl::ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                                   const std::vector<int>& imported_tokens,
                                   std::vector<KvPull>& pulls) {
  Request* r = requests_.Find(id);
  if (!r || r->state != RequestState::kPulling) {
    return FailedPrecondition("only a request that pulls can have its import extended");
  }
  if (!r->import.open) return FailedPrecondition("the import is closed and cannot be extended");
  MR_RETURN_IF_ERROR(CheckExtension(*r, more, imported_tokens, kv_,
                                    forks_.promised_blocks() - r->promised_blocks));
  for (Sequence& s : r->sequences) {
    if (!s.live()) continue;
    const ResumedSequence& news = more[static_cast<size_t>(s.index)];
    s.output.insert(s.output.end(), news.output.begin(), news.output.end());
    if (news.finished) Discard(s);
  }
  for (Sequence& s : r->sequences) {
    if (!s.live()) continue;
    const auto k = static_cast<size_t>(s.index);
    const int before = std::exchange(s.lacking_until, imported_tokens[k]);
    if (imported_tokens[k] == before) continue;
    MR_CHECK(kv_.Grow(s.table, imported_tokens[k])) << "the extension was counted wrong";
    Ask(pulls_, s, std::clamp(s.computed, before, imported_tokens[k]));
  }
  forks_.UpdatePromise(*r);
  pulls_.TakeReady(ledger_.first_in_flight(), pulls);
  return OkStatus();
}

void SchedulerImpl::CloseImport(RequestId id, Time now) {
  Request* r = requests_.Find(id);
  if (!r || !r->import.open) return;
  r->import.open = false;
  r->import.since = now;  // its source has run it until now
  MaybeEndImport(*r, now);
}

void SchedulerImpl::KvArrivedWithout(RequestId id, LayerRange lacking, Time now) {
  Request* r = requests_.Find(id);
  if (r && r->state == RequestState::kPulling) {
    std::optional<LayerRange>& lacks = r->import.lacking;
    LayerRange& all = lacks ? *lacks : lacks.emplace(lacking);
    all = {std::min(all.begin, lacking.begin), std::max(all.end, lacking.end)};
  }
  KvArrived(id, true, now);
}

void SchedulerImpl::KvArrived(RequestId id, bool complete, Time now) {
  if (!pulls_.End(id)) return;
  Request* r = requests_.Find(id);
  const bool wanted = r && r->state == RequestState::kPulling;
  if (!wanted) return;
  if (!complete) r->import.failed = true;
  MaybeEndImport(*r, now);
}

void SchedulerImpl::MaybeEndImport(Request& request, Time now) {
  const bool pulls = pulls_.due(request.spec.id);
  if (request.state != RequestState::kPulling || request.import.open || pulls) return;
  accounting_.Settle(request, now);
  EndImport(request);
  request.was_admitted = true;
  if (request.times.last_token) {
    request.times.transferred = request.times.transferred + (now - request.import.since);
  }
  if (!request.times.first_scheduled) request.times.first_scheduled = now;
  request.times.last_scheduled = now;
  last_moved_ = now;
}

// Applies the KV that arrived. KV that only some layers lack is computed by these: the leader
// computes the prompt, then each of the others the part that it does not share.
void SchedulerImpl::EndImport(Request& request) {
  const bool whole = !request.import.failed && !request.import.lacking;
  if (request.import.failed) forks_.DropTables(request);
  for (Sequence& s : request.sequences) {
    if (!s.live()) continue;
    if (request.import.failed) {
      s.lacking_until = 0;
    } else if (request.import.lacking) {
      s.lacking = *request.import.lacking;
    } else {
      s.computed = std::max(s.computed, std::exchange(s.lacking_until, 0));
      s.computed_most = std::max(s.computed_most, s.computed);
    }
  }
  request.import.awaited = false;
  requests_.Run(request);
  IndexPrefixes(request.sequences[request.leader]);
  if (whole && std::ranges::any_of(request.sequences, &Sequence::waits_with_table)) {
    forks_.Start(request);
  }
  forks_.MaybeStart(request);
  forks_.UpdatePromise(request);
}

void SchedulerImpl::HoldKv(const Sequence& sequence) {
  const Request& r = *sequence.request;
  const bool ended_well =
      sequence.finish == FinishReason::kStop || sequence.finish == FinishReason::kLength;
  if (!r.spec.hold_kv || !ended_well || r.live() > 0) return;
  holds_.Hold(r.spec.id, sequence.table,
              r.times.last_token.value_or(r.times.arrived) + *r.spec.hold_kv);
}

}  // namespace millrace::sched
