#include "cluster/control/parts/blame_ledger.h"

#include <cstdlib>

namespace millrace::cluster {

void BlameLedger::PipelineEnded(RequestId id, const PipelineLoss& loss,
                                std::optional<int64_t> ran_from) {
  const bool alone = tried_ == id;
  if (alone) tried_.reset();
  // An earlier suspicion concerned another pipeline.
  if (const auto found = entries_.find(id); found != entries_.end()) {
    found->second.suspicion.reset();
  }
  if (!ran_from) return;
  if (loss.end == PipelineEnd::kDeath) CountDeath(entries_[id], loss.worker, *ran_from, alone);
  if (loss.end == PipelineEnd::kSuspicion && loss.suspect) {
    entries_[id].suspicion = Suspicion{*loss.suspect, *ran_from, alone};
  }
}

std::vector<RequestId> BlameLedger::CountSuspectedOf(WorkerId lost, const std::string& name) {
  std::vector<RequestId> suspected;
  for (auto& [id, entry] : entries_) {
    if (!entry.suspicion || entry.suspicion->worker != lost) continue;
    CountDeath(entry, name, entry.suspicion->from, entry.suspicion->alone);
    entry.suspicion.reset();
    suspected.push_back(id);
  }
  return suspected;
}

void BlameLedger::CountDeath(Entry& entry, const std::string& worker, int64_t from,
                             bool alone) const {
  const bool same = entry.deaths > 0 && std::abs(from - entry.from) < step_tokens_max_;
  if (!same) {
    entry.deaths = entry.deaths_alone = 0;
    entry.workers.clear();
  }
  ++entry.deaths;
  entry.deaths_alone += alone ? 1 : 0;
  entry.from = from;
  entry.workers.insert(worker);
}

bool BlameLedger::IsSuspect(RequestId id) const {
  const auto found = entries_.find(id);
  return found != entries_.end() && found->second.deaths >= deaths_max_;
}

bool BlameLedger::MayStart(RequestId id) const { return !tried_ || tried_ == id || !IsSuspect(id); }

void BlameLedger::Started(RequestId id) {
  if (IsSuspect(id)) tried_ = id;
}

bool BlameLedger::Cleared(RequestId id) {
  entries_.erase(id);
  if (tried_ != id) return false;
  tried_.reset();
  return true;
}

std::optional<int> BlameLedger::MustFail(RequestId id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return std::nullopt;
  const Entry& entry = found->second;
  const bool unlike = entry.deaths_alone > 0 && entry.workers.size() > 1;
  if (!unlike && entry.deaths_alone < kDeathsAloneMax) return std::nullopt;
  return entry.deaths;
}

}  // namespace millrace::cluster
