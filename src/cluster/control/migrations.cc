#include "cluster/control/migrations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::cluster {
namespace {

// Copying in rounds ends when at most this many tokens are left, or after this many rounds.
constexpr int kRestTokensMax = 32;
constexpr int kRoundsMax = 5;

std::vector<TokenId> OutputFrom(const sched::DetachedRequest& request, int64_t first) {
  const std::vector<TokenId>& output = request.request.resumed.front().output;
  return {output.begin() + first, output.end()};
}

}  // namespace

const Migrations::Migration* Migrations::Find(RequestId id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
}

Status Migrations::Start(RequestId id, PipelineId from, sched::Scheduler& source, PipelineId to,
                         sched::Scheduler& target, Time now) {
  if (full()) {
    return ResourceExhausted(
        fmt::format("{} requests are migrating already; retry later", all_.size()));
  }
  // The blocks are held, so that a preemption does not free them while they are read.
  std::optional<sched::DetachedRequest> copy = source.Export(id, now, options_.hold_limit);
  if (copy && copy->request.params->n != 1) {
    source.ReleaseKv(id);
    return FailedPrecondition("a request with several sequences cannot migrate");
  }
  const int whole = copy ? WholeBlocks(copy->computed_tokens()) : 0;
  if (whole == 0) {
    source.ReleaseKv(id);
    return FailedPrecondition("the request has no complete block of KV to migrate");
  }
  Migration migration{.from = from, .to = to, .imported = whole};
  migration.resumed = std::ssize(copy->request.resumed.front().output);
  copy->request.imported_tokens = {whole};
  copy->request.import_open = true;
  if (Status added = target.Add(std::move(copy->request), now); !added.ok()) {
    source.ReleaseKv(id);
    return added;
  }
  all_.emplace(id, std::move(migration));
  return OkStatus();
}

std::vector<BlockIndex> Migrations::BeginRound(const sched::KvPull& pull,
                                               const sched::Scheduler& source, Time now) {
  Migration& migration = all_.at(pull.id);
  std::vector<BlockIndex> blocks = source.HeldBlocks(pull.id);
  if (blocks.empty()) {
    auto copy = source.Peek(pull.id);
    if (copy && !copy->kv.empty()) blocks = std::move(copy->kv.front().blocks);
  }
  if (std::ssize(blocks) * options_.block_size < pull.end_token) return {};
  if (const auto info = source.Inspect(pull.id, now)) migration.preemptions = info->preemptions;
  return blocks;
}

// A worker's lease begins only when its message arrives, which may be late. So the KV that was read
// is the request's only if it was not preempted at the source since the round began.
bool Migrations::RoundEnded(RequestId id, const FetchedLayers& fetched, sched::Scheduler& source,
                            sched::Scheduler& target, Time now, std::vector<sched::KvPull>& pulls) {
  Migration& migration = all_.at(id);
  const auto info = source.Inspect(id, now);
  if (!fetched.HasAllKv() || !info || info->preemptions != migration.preemptions) {
    return false;
  }
  if (migration.fetched) {
    migration.fetched->KeepCommon(fetched);
  } else {
    migration.fetched = fetched;
  }
  const auto copy = source.Export(id, now, options_.hold_limit);
  if (!copy || copy->computed_tokens() < migration.imported) return false;  // preempted
  const int whole = WholeBlocks(copy->computed_tokens());
  if (whole - migration.imported <= kRestTokensMax || ++migration.rounds >= kRoundsMax) {
    migration.pausing = true;
    return true;
  }
  std::vector<TokenId> more = OutputFrom(*copy, migration.resumed);
  migration.resumed += std::ssize(more);
  migration.imported = whole;
  return target.ExtendImport(id, std::move(more), whole, pulls).ok();
}

std::vector<RequestId> Migrations::Pausing() const {
  std::vector<RequestId> pausing;
  for (const auto& [id, migration] : all_) {
    if (migration.pausing) pausing.push_back(id);
  }
  return pausing;
}

std::optional<Migrations::Paused> Migrations::Pause(RequestId id, sched::Scheduler& source,
                                                    sched::Scheduler& target, Time now,
                                                    std::vector<sched::KvPull>& pulls) {
  if (!source.Pause(id)) return std::nullopt;
  Paused paused{.migration = std::move(all_.extract(id).mapped())};
  const Migration& migration = paused.migration;
  paused.request = source.Detach(id, now, options_.hold_limit);
  if (!paused.request) {
    (void)target.Detach(id, now, std::nullopt);
    source.ReleaseKv(id);
    return paused;
  }
  const int computed = std::max(paused.request->computed_tokens(), migration.imported);
  std::vector<TokenId> more = OutputFrom(*paused.request, migration.resumed);
  paused.pulls_rest = computed > migration.imported;
  if (paused.pulls_rest || !more.empty()) {
    if (!target.ExtendImport(id, std::move(more), computed, pulls).ok()) {
      (void)target.Detach(id, now, std::nullopt);
      source.ReleaseKv(id);
      paused.outcome = Outcome::kNoRoom;
      return paused;
    }
  }
  target.CloseImport(id, now);
  if (!paused.pulls_rest) source.ReleaseKv(id);
  paused.outcome = Outcome::kMoved;
  return paused;
}

Migrations::Migration Migrations::Abandon(RequestId id, sched::Scheduler* source,
                                          sched::Scheduler* target, Time now) {
  if (target != nullptr) (void)target->Detach(id, now, std::nullopt);
  if (source != nullptr) {
    source->Unpause(id);
    source->ReleaseKv(id);
  }
  return std::move(all_.extract(id).mapped());
}

std::vector<RequestId> Migrations::DueForRenewal(Time now,
                                                 const std::function<bool(PipelineId to)>& alive) {
  std::vector<RequestId> due;
  for (auto& [id, migration] : all_) {
    if (!migration.renewal.Due(now, options_.hold_limit) || !alive(migration.to)) continue;
    due.push_back(id);
  }
  return due;
}

bool Migrations::Renew(RequestId id, sched::Scheduler& source, Time now) {
  all_.at(id).renewal.Restart(now, options_.hold_limit);
  const auto info = source.Inspect(id, now);
  if (!info || info->state != sched::RequestState::kRunning) return false;
  (void)source.ExtendHold(id, now, options_.hold_limit);
  return true;
}

}  // namespace millrace::cluster
