#include "sched/imports.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/new_request.h"

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

bool Imports::Start(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  const bool forked = parts_.forks.ImportsForked(request);
  const int imported = request.ImportedOf(leader);
  leader.lacking_until =
      request.sharing_prompt && !forked ? std::min(imported, request.prompt_tokens) : imported;
  request.import.awaited = leader.lacking_until > 0;
  if (!request.import.awaited) return false;
  parts_.requests.Pull(request);
  if (forked) parts_.forks.TakeTables(request);
  Ask(parts_.pulls, leader, std::min(leader.computed, leader.lacking_until));
  const int shared = parts_.forks.SharedBlocks(request);
  for (const Sequence& s : request.sequences) {
    if (s.waits_with_table()) Ask(parts_.pulls, s, shared * parts_.kv.block_size());
  }
  parts_.forks.UpdatePromise(request);
  return true;
}

Status Imports::Extend(RequestId id, const std::vector<ResumedSequence>& more,
                       const std::vector<int>& imported_tokens, std::vector<KvPull>& pulls) {
  Request* r = parts_.requests.Find(id);
  if (!r || r->state != RequestState::kPulling) {
    return FailedPrecondition("only a request that pulls can have its import extended");
  }
  if (!r->import.open) return FailedPrecondition("the import is closed and cannot be extended");
  MR_RETURN_IF_ERROR(CheckExtension(*r, more, imported_tokens, parts_.kv,
                                    parts_.forks.promised_blocks() - r->promised_blocks));
  for (Sequence& s : r->sequences) {
    if (!s.live()) continue;
    const ResumedSequence& news = more[static_cast<size_t>(s.index)];
    s.output.insert(s.output.end(), news.output.begin(), news.output.end());
    if (news.finished) parts_.endings.Discard(s);
  }
  for (Sequence& s : r->sequences) {
    if (!s.live()) continue;
    const auto k = static_cast<size_t>(s.index);
    const int before = std::exchange(s.lacking_until, imported_tokens[k]);
    if (imported_tokens[k] == before) continue;
    MR_CHECK(parts_.kv.Grow(s.table, imported_tokens[k])) << "the extension was counted wrong";
    Ask(parts_.pulls, s, std::clamp(s.computed, before, imported_tokens[k]));
  }
  parts_.forks.UpdatePromise(*r);
  parts_.pulls.TakeReady(parts_.ledger.first_in_flight(), pulls);
  return OkStatus();
}

void Imports::Close(RequestId id, Time now) {
  Request* r = parts_.requests.Find(id);
  if (!r || !r->import.open) return;
  r->import.open = false;
  r->import.since = now;  // its source has run it until now
  MaybeEnd(*r, now);
}

void Imports::KvArrivedWithout(RequestId id, LayerRange lacking, Time now) {
  Request* r = parts_.requests.Find(id);
  if (r && r->state == RequestState::kPulling) {
    std::optional<LayerRange>& lacks = r->import.lacking;
    LayerRange& all = lacks ? *lacks : lacks.emplace(lacking);
    all = {std::min(all.begin, lacking.begin), std::max(all.end, lacking.end)};
  }
  KvArrived(id, true, now);
}

void Imports::KvArrived(RequestId id, bool complete, Time now) {
  if (!parts_.pulls.End(id)) return;
  Request* r = parts_.requests.Find(id);
  const bool wanted = r && r->state == RequestState::kPulling;
  if (!wanted) return;
  if (!complete) r->import.failed = true;
  MaybeEnd(*r, now);
}

void Imports::MaybeEnd(Request& request, Time now) {
  const bool pulls = parts_.pulls.due(request.spec.id);
  if (request.state != RequestState::kPulling || request.import.open || pulls) return;
  parts_.accounting.Settle(request, now);
  End(request);
  request.was_admitted = true;
  if (request.times.last_token) {
    request.times.transferred = request.times.transferred + (now - request.import.since);
  }
  if (!request.times.first_scheduled) request.times.first_scheduled = now;
  request.times.last_scheduled = now;
  parts_.last_moved = now;
}

// Applies the KV that arrived. KV that only some layers lack is computed by these: the leader
// computes the prompt, then each of the others the part that it does not share.
void Imports::End(Request& request) {
  const bool whole = !request.import.failed && !request.import.lacking;
  if (request.import.failed) parts_.forks.DropTables(request);
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
  parts_.requests.Run(request);
  IndexPrefixes(parts_.kv, request.sequences[request.leader]);
  if (whole && std::ranges::any_of(request.sequences, &Sequence::waits_with_table)) {
    parts_.forks.Start(request);
  }
  parts_.forks.MaybeStart(request);
  parts_.forks.UpdatePromise(request);
}

}  // namespace millrace::sched
