#include "cluster/control/blame_ledger.h"

namespace millrace::cluster {

void BlameLedger::PipelineEnded(RequestId id, PipelineEnd end, bool ran, int64_t delivered,
                                std::optional<WorkerId> suspect) {
  // An earlier suspicion concerned another pipeline.
  if (const auto found = entries_.find(id); found != entries_.end()) found->second.suspect.reset();
  if (!ran) return;
  if (end == PipelineEnd::kDeath) CountDeath(id, delivered);
  if (end == PipelineEnd::kSuspicion) entries_[id].suspect = suspect;
}

std::vector<RequestId> BlameLedger::TakeSuspectedOf(WorkerId lost) {
  std::vector<RequestId> suspected;
  for (auto& [id, entry] : entries_) {
    if (entry.suspect != lost) continue;
    entry.suspect.reset();
    suspected.push_back(id);
  }
  return suspected;
}

void BlameLedger::CountDeath(RequestId id, int64_t delivered) {
  Entry& entry = entries_[id];
  const bool progress = entry.deaths > 0 && delivered > entry.delivered_at_death;
  entry.deaths = progress ? 1 : entry.deaths + 1;
  entry.delivered_at_death = delivered;
}

std::optional<int> BlameLedger::MustFail(RequestId id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.deaths < deaths_max_) return std::nullopt;
  return found->second.deaths;
}

void BlameLedger::Forget(RequestId id) { entries_.erase(id); }

}  // namespace millrace::cluster
