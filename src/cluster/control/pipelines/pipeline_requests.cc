#include "cluster/control/pipelines/pipeline_requests.h"

#include <utility>

#include "base/check.h"

namespace millrace::cluster {

void PipelineRequests::Add(RequestId id, int64_t prefill_tokens) {
  MR_CHECK(prefill_tokens_.emplace(id, prefill_tokens).second) << "request " << id << " twice";
  ahead_ += prefill_tokens;
}

void PipelineRequests::PrefillEnded(RequestId id) {
  ahead_ -= std::exchange(prefill_tokens_.at(id), 0);
}

void PipelineRequests::Remove(RequestId id) {
  const auto found = prefill_tokens_.find(id);
  if (found == prefill_tokens_.end()) return;
  ahead_ -= found->second;
  prefill_tokens_.erase(found);
}

DispatchLoad PipelineRequests::Load(double prefill_tokens_per_s) const {
  const double seconds = static_cast<double>(ahead_) / prefill_tokens_per_s;
  return {.requests = static_cast<int64_t>(prefill_tokens_.size()),
          .prefill_ahead = Duration::Seconds(seconds)};
}

std::vector<RequestId> PipelineRequests::Ids() const {
  std::vector<RequestId> ids;
  ids.reserve(prefill_tokens_.size());
  for (const auto& [id, tokens] : prefill_tokens_) ids.push_back(id);
  return ids;
}

}  // namespace millrace::cluster
