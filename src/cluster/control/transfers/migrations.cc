#include "cluster/control/transfers/migrations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::cluster {
namespace {

// Copying in rounds ends when at most this many tokens are left, or after this many rounds.
constexpr int kRestTokensMax = 32;
constexpr int kRoundsMax = 5;

// What the source has generated that the destination does not know.
std::vector<sched::ResumedSequence> NewsOf(const sched::DetachedRequest& request,
                                           std::vector<size_t>& known) {
  std::vector<sched::ResumedSequence> news;
  for (size_t k = 0; k < known.size(); ++k) {
    const sched::ResumedSequence& s = request.request.resumed[k];
    const auto first = s.output.begin() + static_cast<ptrdiff_t>(known[k]);
    news.push_back({.output = {first, s.output.end()}, .finished = s.finished});
    known[k] = s.output.size();
  }
  return news;
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
  const auto info = source.Inspect(id, now);
  Migration migration{.from = from, .to = to};
  bool enough = copy && info && !copy->kv.empty();
  for (size_t k = 0; enough && k < copy->kv.size(); ++k) {
    const sched::ResumedSequence& s = copy->request.resumed[k];
    const int whole = s.finished ? 0 : WholeBlocks(copy->kv[k].tokens);
    enough = s.finished || whole > 0;
    migration.pulls += s.finished ? 0 : 1;
    migration.imported.push_back(whole);
    migration.known.push_back(s.output.size());
  }
  if (!enough) {
    source.ReleaseKv(id);
    return FailedPrecondition("the request has no complete block of KV to migrate");
  }
  migration.preemptions = info->preemptions;
  migration.kv = std::move(copy->kv);
  copy->request.imported_tokens = migration.imported;
  copy->request.import_open = true;
  if (Status added = target.Add(std::move(copy->request), now); !added.ok()) {
    source.ReleaseKv(id);
    return added;
  }
  all_.emplace(id, std::move(migration));
  return OkStatus();
}

std::vector<BlockIndex> Migrations::SourceOf(const sched::KvPull& pull) const {
  const sched::SequenceKv& kv = all_.at(pull.id).kv[static_cast<size_t>(pull.index)];
  return kv.tokens >= pull.end_token ? kv.blocks : std::vector<BlockIndex>();
}

// A worker's lease begins only when its message arrives, which may be late. So the KV that was read
// is the request's only if it was not preempted at the source since the round began.
bool Migrations::PullEnded(RequestId id, const FetchedLayers& fetched, sched::Scheduler& source,
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
  return --migration.pulls > 0 || RoundEnded(id, migration, source, target, now, pulls);
}

bool Migrations::RoundEnded(RequestId id, Migration& migration, sched::Scheduler& source,
                            sched::Scheduler& target, Time now,
                            std::vector<sched::KvPull>& pulls) const {
  auto copy = source.Export(id, now, options_.hold_limit);
  if (!copy || copy->kv.empty()) return false;  // preempted
  std::vector<int> imported = migration.imported;
  int pulls_due = 0, rest = 0;
  for (size_t k = 0; k < imported.size(); ++k) {
    if (copy->request.resumed[k].finished) continue;
    const int whole = WholeBlocks(copy->kv[k].tokens);
    if (whole < imported[k]) return false;
    pulls_due += whole > imported[k] ? 1 : 0;
    rest += whole - std::exchange(imported[k], whole);
  }
  if (rest <= kRestTokensMax || ++migration.rounds >= kRoundsMax) {
    migration.pausing = true;
    return true;
  }
  migration.pulls = pulls_due;
  migration.kv = std::move(copy->kv);
  migration.imported = std::move(imported);
  return target.ExtendImport(id, NewsOf(*copy, migration.known), migration.imported, pulls).ok();
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
  source.Pause(id);
  if (!source.AtRest(id)) return std::nullopt;
  Paused paused{.migration = std::move(all_.extract(id).mapped())};
  paused.request = source.Detach(id, now, options_.hold_limit);
  if (!paused.request) {
    (void)target.Detach(id, now, std::nullopt);
    source.ReleaseKv(id);
    return paused;
  }
  Migration& migration = paused.migration;
  std::vector<int> imported = migration.imported;
  for (size_t k = 0; k < paused.request->kv.size(); ++k) {
    const int computed = paused.request->kv[k].tokens;
    if (computed <= imported[k]) continue;
    imported[k] = computed;
    paused.pulls_rest = true;
  }
  const auto news = NewsOf(*paused.request, migration.known);
  if (!target.ExtendImport(id, news, imported, pulls).ok()) {
    (void)target.Detach(id, now, std::nullopt);
    source.ReleaseKv(id);
    paused.outcome = Outcome::kNoRoom;
    return paused;
  }
  if (TimeAccount* account = target.AccountOf(id)) {
    *account = paused.request->request.account;
    account->Enter(TimeCause::kMove);
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
