#include "cluster/control/transfers/eviction.h"

#include <utility>

namespace millrace::cluster {

std::optional<RequestId> RequestToEvict(PipelineId starved, const MemoryHolders& holders,
                                        Time now) {
  const auto age_of = [&](RequestId id) {
    return std::pair(holders.requests.Find(id)->arrived, id);
  };
  std::optional<std::pair<Time, RequestId>> oldest, youngest;
  for (RequestId id : holders.pipelines.at(starved).requests.Ids()) {
    if (!oldest || age_of(id) < *oldest) oldest = age_of(id);
  }
  for (const auto& [id, pipeline] : holders.pipelines.all()) {
    if (id == starved || pipeline.retiring || !holders.memory.ShareMemory(id, starved)) continue;
    for (RequestId request : pipeline.requests.Ids()) {
      const auto info = pipeline.scheduler->Inspect(request, now);
      const bool holds = info && info->blocks > 0 && info->state != sched::RequestState::kPulling;
      if (!holds || holders.transfers.Migrates(request)) continue;
      if (!youngest || age_of(request) > *youngest) youngest = age_of(request);
    }
  }
  if (!oldest || !youngest || *youngest < *oldest) return std::nullopt;
  return youngest->second;
}

}  // namespace millrace::cluster
